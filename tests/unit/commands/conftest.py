"""Machines that are described rather than there."""

from tests.unit.engine.devices.conftest import machine  # noqa: F401 - a fixture
