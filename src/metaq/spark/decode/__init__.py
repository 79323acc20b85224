"""Bodies as columns: decoders of JSON, Avro, Protobuf, UTF-8 and Hessian 1 strings, safe for any body.

Each function returns a Column over `body`: a struct of the fields and of `_corrupt binary`. Where the body decodes,
`_corrupt` is null; where it does not, `_corrupt` is the body and all fields are null. `expand` makes columns of the struct.
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
"""Decoders that need a library of the extra `decode`: imported when they are first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as fault:
        # A missing module of ours is a bug; any other is a library of the extra `decode`.
        if fault.name is None or fault.name.startswith("metaq"):
            raise
        raise ConfigError(f"decode.{name} needs {fault.name}: pip install 'pymetaq[spark,decode]'") from fault
