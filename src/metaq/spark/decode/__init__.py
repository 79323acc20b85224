"""Bodies as columns: JSON, Avro, Protobuf, UTF-8 and Hessian 1 strings, whatever a body holds.

Each function gives a Column over `body`: a struct of the fields and of `_corrupt binary`, which is null where the body
decoded, and is the body where it did not; then all fields are null. `expand` makes columns of the struct.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from metaq.errors import ConfigError
from metaq.spark.decode.columns import CORRUPT, expand
from metaq.spark.decode.hessian1 import hessian
from metaq.spark.decode.json_text import json
from metaq.spark.decode.utf8 import text

if TYPE_CHECKING:
    from metaq.spark.decode.avro_binary import avro
    from metaq.spark.decode.protobuf_binary import protobuf

__all__ = ["CORRUPT", "avro", "expand", "hessian", "json", "protobuf", "text"]

_HOMES = {"avro": "avro_binary", "protobuf": "protobuf_binary"}
"""What needs a library that only the extra `decode` brings."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.startswith("metaq"):
            raise
        raise ConfigError(f"decode.{name} needs {fault.name}: pip install 'pymetaq[spark,decode]'") from fault
