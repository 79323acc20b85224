"""The programs of examples/gallery/ as modules."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.support import ROOT

GALLERY = ROOT / "examples" / "gallery"
PICTURE_BYTES_MAX = 60_000


@pytest.fixture
def gallery(monkeypatch):
    """Function that loads one of them anew, with what it imports of its neighbours."""
    monkeypatch.syspath_prepend(GALLERY)
    for path in GALLERY.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, GALLERY / f"{name}.py")
        example = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, example)
        spec.loader.exec_module(example)
        return example

    return load
