"""Who is told of a run while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.engine.events import Event


@dataclass(frozen=True, kw_only=True)
class Listener:
    """What a run calls, in its one thread: each should return soon.

    Attributes:
        on_event: Told every event, see `engine.events`.
        on_tick: Called a few times a second, to show what was told.
        on_notice: Told what there is to say of where workers live, or "", each time before `on_tick`.
        on_stop: Told in a line what happens now when a signal asks the run to stop.
    """

    on_event: Callable[[Event], object] = lambda _: None
    on_tick: Callable[[], object] = lambda: None
    on_notice: Callable[[str], object] = lambda _: None
    on_stop: Callable[[str], object] = lambda _: None
