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
import io
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import SimpleNamespace, TracebackType
from typing import Any, Final

# Spark runs this module with `python -m`: its name is `__main__` then.
MODULE: Final = __name__ if __name__ != "__main__" else "metaq.spark.daemon"
NEEDED: Final = ("pyspark.worker", "pyspark.sql.pandas.types", "pyarrow.compute", "metaq.spark.data_source")
"""Imports of tasks of `format("metaq")`. Not pandas nor numpy.random: all forks would draw the same random numbers."""
_QUIET: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment variables that keep libraries from starting threads at import."""
_LOST: Final = BrokenPipeError, ConnectionResetError, EOFError
"""What Spark's Python raises when its peer is gone. A user's own EOFError is told to the JVM, and not by these ways."""
_CALLED_BY_A_JVM: Final = "PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH"
"""Environment variables of a Python that is to connect to Spark's JVM."""


def main() -> None:
    """Run Spark's daemon, which ends the process."""
    # macOS has libraries of its own in numpy, which must not be used on both sides of a fork.
    if sys.platform == "linux":
        warm(NEEDED)
    quiet()
    # Last: if nothing else can be imported, this is Spark's own daemon.
    from pyspark.daemon import manager

    manager()


def quiet(daemon: Any = None) -> None:
    """Keep Spark's daemon from printing a stack trace when a worker's peer is gone before the worker is.

    The JVM ends a planner or worker that was idle for a minute, and all of them at a stop, by closing its connection. What
    the worker would write then nobody wants, and nothing is wrong. Other failures are told as before.

    Args: daemon: the module `pyspark.daemon`, under whichever name this process has it.
    """
    if daemon is None:
        daemon = importlib.import_module("pyspark.daemon")

    def wanted() -> bool:
        return not isinstance(sys.exc_info()[1], _LOST)

    def tell(*values: object, **options: Any) -> None:
        if wanted():
            print(*values, **options)  # noqa: T201  in the place of Spark's own

    def print_exc() -> None:
        if wanted():
            traceback.print_exc()

    # Names that the module's functions find before the built-in, and before the module of that name. Whether the failure of
    # the last write is printed or raised is a setting of Spark's.
    daemon.print = tell
    daemon.traceback = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
    sys.unraisablehook = _tell_unless_unwritten


def quiet_here() -> None:
    """As `quiet`, in a Python that Spark starts: in a worker of its own daemon, and in a stream's planner, which is no fork.

    Planners are always one of both, and in a cluster all are. What one says before it imports this package stays, unless a
    sitecustomize imports it.
    """
    module = sys.orig_argv[2] if sys.orig_argv[1:2] == ["-m"] else ""
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", "") == "pyspark.daemon":
        quiet(main)
    elif module == "pyspark.daemon":
        # Imported before the daemon's module runs, as a sitecustomize does: its names are set where it has them, in each fork.
        os.register_at_fork(after_in_child=quiet_here)
    elif module.startswith("pyspark.") and any(name in os.environ for name in _CALLED_BY_A_JVM):
        sys.excepthook = _tell_unless_lost
        sys.unraisablehook = _tell_unless_unwritten


def _tell_unless_lost(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
    """As the usual `sys.excepthook`, but for a JVM that is gone or does not listen any more."""
    if not isinstance(fault, _LOST) and "[CANNOT_OPEN_SOCKET]" not in str(fault):
        sys.__excepthook__(kind, fault, trace)


def _tell_unless_unwritten(failure: Any) -> None:
    """As the usual `sys.unraisablehook`, but for a file that could not write its last bytes to a peer that is gone.

    Python 3.13 and newer tell of it when the file is collected, older ones do not.
    """
    if not (isinstance(failure.exc_value, _LOST) and isinstance(failure.object, io.IOBase)):
        sys.__unraisablehook__(failure)


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
