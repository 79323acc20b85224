"""Compiled modules: taken where they were built, unless METAQ_HOT=0 asks for plain Python."""

from __future__ import annotations

import importlib
import os
from types import ModuleType


def compiled(name: str) -> tuple[ModuleType | None, ImportError | None]:
    """The compiled module of this name. Without one: None, and why it cannot be imported; two None with METAQ_HOT=0."""
    if os.environ.get("METAQ_HOT", "1") == "0":
        return None, None
    try:
        return importlib.import_module(name), None
    except ImportError as error:  # nobody has built it, or not on this system
        return None, error
