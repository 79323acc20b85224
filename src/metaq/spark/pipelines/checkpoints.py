"""Spark's checkpoint of a query: where it is, and whose."""

from __future__ import annotations

import json
from pathlib import Path

CHECKPOINT = "_checkpoint"
"""In a pipeline's folder, unless it is kept elsewhere."""


def query_id(checkpoint: Path) -> str | None:
    """The id that Spark gave the query of this checkpoint; None before its first start."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def spark_path(path: Path) -> str:
    """A local path as Spark reads it: a scheme, and nothing percent-encoded."""
    return f"file:{path}"
