"""Spark's daemon of Python workers, with their imports done before it forks them.

Spark runs the module that this setting names, and forks its Python workers from that process:

    spark.python.daemon.module   metaq.spark.daemon

With Spark's own, `pyspark.daemon`, every worker imports pyspark, pyarrow, numpy and this package anew, and collects garbage
over all their objects after every task. Here workers share the imported modules, as copy-on-write pages.

Threads do not survive a fork, and a lock that one of them held stays locked in the child. So nothing is imported here that
starts a thread: jemalloc, Arrow's second allocator, is told to have none; numpy has none for the one core that Spark gives a
worker, and ends those it has before each fork. Outside Linux, where system libraries do not survive a fork, nothing is
imported before.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

# Spark runs this module with `python -m`: its name is `__main__` then.
MODULE: Final = __name__ if __name__ != "__main__" else "metaq.spark.daemon"
NEEDED: Final = ("pyspark.worker", "pyspark.sql.pandas.types", "pyarrow.compute", "metaq.spark.data_source")
"""Imports of tasks of `format("metaq")`. Not pandas nor numpy.random: all forks would draw the same random numbers."""
_QUIET: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment variables that keep libraries from starting threads at import."""


def main() -> None:
    """Run Spark's daemon, which ends the process."""
    # macOS has libraries of its own in numpy, which must not be used on both sides of a fork.
    if sys.platform == "linux":
        warm(NEEDED)
    quiet()
    # Last: if nothing else can be imported, this is Spark's own daemon.
    from pyspark.daemon import manager

    manager()


def quiet() -> None:
    """Keep Spark's daemon from printing a stack trace when a worker's peer is gone before the worker is.

    The JVM ends a planner or worker that was idle for a minute by closing its connection; what the worker would write then,
    nobody wants, and nothing is wrong. Other failures of that last write are printed as before.
    """
    from pyspark import daemon

    def tell(*values: object, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            print(*values, **options)  # noqa: T201  in the place of Spark's own

    daemon.print = tell  # the name that the module's functions find before the built-in


def warm(modules: Iterable[str]) -> None:
    """Import modules for all processes that are forked from this one. Missing or failing ones are left out.

    A worker that needs such a module raises the error itself; other workers run.
    """
    # Spark reads the daemon's port from standard output: a module that prints at import would garble it.
    with _without_threads(), contextlib.redirect_stdout(sys.stderr):
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    # Collected first: what is frozen is never looked at again, garbage included.
    gc.collect()
    # A worker collects garbage after each task, which would write to, and so copy, all shared objects.
    gc.freeze()


@contextlib.contextmanager
def _without_threads() -> Iterator[None]:
    """Keep libraries that are imported in this context from starting threads. Variables that the user has set stay."""
    ours = {name: value for name, value in _QUIET.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


if __name__ == "__main__":
    main()
