"""Spark's daemon of Python workers, with what they need imported before it forks them.

A setting of Spark names the module that it runs, and workers are forks of that process:

    spark.python.daemon.module   metaq.spark.daemon

With Spark's own, `pyspark.daemon`, every worker imports pyspark, pyarrow, numpy and this package anew, and after every task
looks through all their objects for garbage. Here workers share both, as memory that is copied when it is written to.

Threads do not outlive a fork, and a lock that one of them held stays locked. So nothing is imported here that starts one:
Arrow's second allocator is told to have none, numpy has none for the one core that Spark gives a worker, and where it has
more it ends them before each fork. On systems whose own libraries do not bear a fork nothing is imported before.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

MODULE: Final = __name__ if __name__ != "__main__" else "metaq.spark.daemon"
NEEDED: Final = ("pyspark.worker", "pyspark.sql.pandas.types", "pyarrow.compute", "metaq.spark.data_source")
"""What tasks of `format("metaq")` import. Not pandas and not numpy.random: their forks would draw the same numbers."""
_QUIET: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def main() -> None:
    """Run Spark's daemon, which ends the process."""
    if (
        sys.platform == "linux"
    ):  # macOS has libraries of its own in numpy, which must not be used on both sides of a fork.
        warm(NEEDED)
    from pyspark.daemon import manager  # last: a daemon in which nothing else can be imported is Spark's own

    manager()


def warm(modules: Iterable[str]) -> None:
    """Import modules for all processes that are forked from this one; missing or failing ones are left out.

    A worker that needs one of these says what is wrong with it: the others go on.
    """
    # Spark reads from standard output where the daemon listens.
    with _without_threads(), contextlib.redirect_stdout(sys.stderr):
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    gc.collect()
    gc.freeze()  # A worker looks for garbage after each task, which would touch, and so copy, all of this.


@contextlib.contextmanager
def _without_threads() -> Iterator[None]:
    """Keep libraries that are imported meanwhile from starting threads. Variables that are set already stay."""
    ours = {name: value for name, value in _QUIET.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


if __name__ == "__main__":
    main()
