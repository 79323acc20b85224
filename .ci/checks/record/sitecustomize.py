"""Records which files of the project this process opens or imports; Python runs it first in every process of a recorded step.

`PYTHONPATH` names this folder, and so the processes that tests start, Spark's workers among them, run it as well. Only a
path that this process has not opened before costs a line in the file; the file is opened for each line, because a process may
close every descriptor that it did not open itself, or fork.
"""

import contextlib
import os
import sys


def _record(root: str, out: str) -> None:
    seen: set[str] = set()
    start = root.rstrip("/") + "/"

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event == "open":
            path = args[0]
        elif event == "import":
            path = args[1]  # set for compiled modules, which the interpreter does not open itself
        else:
            return
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str) or path in seen:
            return
        seen.add(path)
        whole = os.path.abspath(path)  # noqa: PTH100 - pathlib costs a millisecond of every start
        if not whole.startswith(start):
            return
        with contextlib.suppress(OSError):
            file = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(file, (whole[len(start) :] + "\n").encode("utf-8", "surrogateescape"))
            os.close(file)

    sys.addaudithook(hook)


if "CI_OPENED" in os.environ and "CI_ROOT" in os.environ:
    _record(os.environ["CI_ROOT"], os.environ["CI_OPENED"])
