"""Tells Hydra the schema of this package, so that ``compose`` works in a program that does not import it.

Hydra looks for plugins in every folder `hydra_plugins` on the path of modules.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin


class PipelineSchema(SearchPathPlugin):
    """Registers the schema, where this has not been done with algorithms of the user's own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:  # noqa: ARG002 - as Hydra calls it
        """Called whenever Hydra starts."""
        if "schema.yaml" not in ConfigStore.instance().repo:
            from pipeline.config.load import register_schemas

            register_schemas()
