"""The tables of a request, `algos`, `datasets` and `models`: whose settings each of their sections holds.

A section has the settings of the class that makes it: the one that ships under its name or kind, or one of the
user's own. Which they are its `config_class` says. Classes are imported by their dotted paths, when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipeline.config.bases import AlgoConfig, DatasetConfig, ModelConfig
from pipeline.config.fields import MISSING
from pipeline.config.fronts import point_of
from pipeline.config.shipped import ALGORITHMS, DATASETS, MODELS
from pipeline.config.user_code import check_settings_class, import_object
from pipeline.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Table:
    """A table of sections.

    Attributes:
        what: What a section is, for messages.
        group: The folder of ``conf/`` with files for it.
        base: What settings of a section build on.
        shipped: Name or kind -> dotted path of what ships.
        parent: Dotted path of what a class of the user's own builds on; "" where there can be none.
        example: A setting, for messages.
    """

    what: str
    group: str
    base: type[Any]
    shipped: Mapping[str, str]
    parent: str
    example: str


TABLES = {
    "algos": Table(
        "algorithm", "algos", AlgoConfig, ALGORITHMS, "pipeline.learning.algos.base.Algorithm", "enabled: true"
    ),
    "datasets": Table(
        "dataset", "dataset", DatasetConfig, DATASETS, "pipeline.learning.datasets.base.Dataset", "kind: addition"
    ),
    "models": Table("model", "model", ModelConfig, MODELS, "", "kind: tiny"),
}


def settings_class(table: str, name: str, section: Mapping[str, Any]) -> type[Any]:
    """The dataclass of the settings of a section.

    A class of the user's own may have the name or kind of what ships. Its settings are then those of what ships
    if it asks for no others.

    Args:
        table: ``algos``, ``datasets`` or ``models``.
        name: Of the section.
        section: Its plain settings: ``class_path`` and, where the name does not say it, ``kind``.

    Raises:
        ConfigError: The name or kind is unknown, or the class has no settings dataclass.
    """
    about = TABLES[table]
    kind = point_of(name)[0] if table == "algos" else str(section.get("kind", MISSING))
    shipped = shipped_settings(about.shipped[kind]) if kind in about.shipped else None
    if about.parent and (path := section.get("class_path")):
        own = _own_settings(f"{table}.{name}.class_path={path}", path, about)
        return shipped if shipped is not None and issubclass(shipped, own) else own
    if shipped is not None:
        return shipped
    if table != "algos":
        raise ConfigError(f"{about.what} '{name}': " + unknown_name("kind", kind, about.shipped))
    raise ConfigError(
        unknown_name(about.what, kind, about.shipped)
        + f" For one of your own set algos.{kind}.class_path=my_module.MyAlgorithm."
    )


def all_shipped(table: str) -> dict[str, type[Any]]:
    """Settings of all that ships of a table, by name or kind."""
    return {name: shipped_settings(path) for name, path in TABLES[table].shipped.items()}


@cache
def shipped_settings(path: str) -> type[Any]:
    """The settings of something that ships, by its dotted path; of a model the path is that of its settings."""
    found = import_object(path)
    schema: type[Any] = getattr(found, "config_class", found)
    return schema


def _own_settings(owner: str, path: str, about: Table) -> type[Any]:
    found = import_object(path)
    schema = getattr(found, "config_class", None)
    if schema is None:
        raise ConfigError(
            f"{owner} is no {about.parent.rpartition('.')[2]}: it has no config_class. It must be a subclass of "
            f"{about.parent}."
        )
    check_settings_class(owner, schema, about.base)
    _refuse_other_family(owner, found, schema)
    own: type[Any] = schema
    return own


def _refuse_other_family(owner: str, found: type[Any], schema: type[Any]) -> None:
    """Refuse settings without the fields that the methods of a class of ours read, which a class builds on."""
    ours = next((base for base in getattr(found, "__mro__", ()) if _ships(base)), None)
    needed = getattr(ours, "config_class", schema)
    if ours is not None and not issubclass(schema, needed):
        raise ConfigError(
            f"{owner}: its config_class {schema.__name__} does not build on {needed.__name__}, the settings of "
            f"{ours.__name__}, whose methods read them; build it on that"
        )


def _ships(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]
