"""MetaQ and Spark: `format("metaq")`, a session that needs no Java installed, and ready-made pipelines.

Importing this package loads neither pyspark nor Java; the names below do so when they are first used. It lets Spark's
workers run this Python (`metaq.spark.interpreter`), so import it before a session is made by other means than `session`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metaq.errors import ConfigError
from metaq.spark import interpreter
from metaq.spark.java import Java, find_java

if TYPE_CHECKING:
    from metaq.spark import decode
    from metaq.spark.engine import session
    from metaq.spark.listener import ProgressListener
    from metaq.spark.pipelines.archiving import archive
    from metaq.spark.pipelines.row_changes.snapshot import read_snapshot, snapshot
    from metaq.spark.progress import Lag, QueueLag, lag
    from metaq.spark.repeats import without_repeats
    from metaq.spark.tables import table

__all__ = [
    "Java",
    "Lag",
    "ProgressListener",
    "QueueLag",
    "archive",
    "decode",
    "find_java",
    "lag",
    "read_snapshot",
    "session",
    "snapshot",
    "table",
    "without_repeats",
]

_HOMES = {
    "Lag": "progress",
    "ProgressListener": "listener",
    "QueueLag": "progress",
    "archive": "pipelines.archiving",
    "decode": "decode",
    "lag": "progress",
    "read_snapshot": "pipelines.row_changes.snapshot",
    "session": "engine",
    "snapshot": "pipelines.row_changes.snapshot",
    "table": "tables",
    "without_repeats": "repeats",
}

interpreter.prefer_this_python()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
        return home if name == _HOMES[name] else getattr(home, name)
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.startswith("metaq"):
            raise
        raise ConfigError(
            f"metaq.spark.{name} needs {fault.name.partition('.')[0]}: pip install 'pymetaq[spark]'"
        ) from fault
