"""Compiled modules: imported where they were built, unless METAQ_HOT=0 asks for plain Python."""

from __future__ import annotations

import importlib
import os
from types import ModuleType


def compiled(name: str) -> tuple[ModuleType | None, ImportError | None]:
    """Return a compiled module and None; without one, None and the ImportError; with METAQ_HOT=0, None twice."""
    if os.environ.get("METAQ_HOT", "1") == "0":
        return None, None
    try:
        return importlib.import_module(name), None
    except ImportError as error:  # not built, or not on this system
        return None, error
