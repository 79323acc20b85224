"""An extension of griffe for the pages of the Python API: a default that is a name of another module is shown as its value.

`commit_interval: float = USUAL.persist` says nothing to a reader, who cannot see that table; `= 5.0` does.
"""

from __future__ import annotations

import importlib
import operator
from typing import Any

import griffe


class Defaults(griffe.Extension):
    """Writes plain values in the place of the names that parameters have as defaults."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            if isinstance(parameter.default, griffe.ExprName | griffe.ExprAttribute):
                parameter.default = plain_value(func.module.path, str(parameter.default)) or parameter.default


def plain_value(module: str, name: str) -> str | None:
    """What a dotted name is in a module, if that is a number, a text, a truth value, None or (); None if it is anything else.

    Also if the module cannot be imported, because an extra that it needs is not installed.
    """
    try:
        value = operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return None
    return repr(value) if value is None or value == () or isinstance(value, bool | int | float | str) else None
