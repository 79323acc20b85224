"""A pipeline of the user's own: a Python file that says `PIPELINE = Pipeline(...)`. `metaq pipeline init` writes one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from metaq.errors import ConfigError
from metaq.pipelines.catalogue import Pipeline
from metaq.pipelines.options import PipelineOptions
from metaq.pipelines.run import Run

SUFFIX = ".py"


def load(path: str | Path) -> Pipeline:
    """Run the file and take its `PIPELINE`. Raises ConfigError: it cannot be read, fails, or has none."""
    place = Path(path).absolute()
    if not place.is_file():
        raise ConfigError(f"there is no file {place}: a pipeline of your own is a Python file (metaq pipeline init)")
    spec = importlib.util.spec_from_file_location(place.stem, place)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if place.stem in sys.modules:
        raise ConfigError(f"{place}: a module {place.stem} is loaded already; give the file another name")
    sys.modules[place.stem] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        del sys.modules[place.stem]
        raise ConfigError(f"{place} cannot be loaded: {type(fault).__name__}: {fault}") from fault
    found = getattr(module, "PIPELINE", None)
    if not isinstance(found, Pipeline) or not callable(found.home):
        del sys.modules[place.stem]
        raise ConfigError(f"{place} has no PIPELINE = Pipeline(name, summary, options, start)")
    return Pipeline(found.name, found.summary, found.options, _Start(module, found.home), found.prepare)


class _Start:
    """The file's `start`, for a session whose workers cannot import the file: what they get of it goes by value."""

    def __init__(self, module: ModuleType, start: Any) -> None:
        self._module, self._start = module, start

    def __call__(self, spark: Any, options: PipelineOptions, run: Run) -> Any:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(self._module)
        return self._start(spark, options, run)
