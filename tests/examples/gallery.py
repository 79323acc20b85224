"""The programs of examples/gallery/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from tests.support import ROOT

GALLERY = ROOT / "examples" / "gallery"
PICTURE_BYTES_MAX = 60_000


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return one of them, loaded anew; during the test it finds its neighbours."""
    if str(GALLERY) not in sys.path:
        monkeypatch.syspath_prepend(GALLERY)
    spec = importlib.util.spec_from_file_location(name, GALLERY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, example)
    spec.loader.exec_module(example)
    return example
