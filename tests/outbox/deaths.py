"""Runs a program again and again, to die at its first step, then at its second, until it gets through.

python deaths.py MODULE ORDER ARGUMENTS...: calls `start(*ARGUMENTS, number, order)` of the module in a process for each number, all of
them forked from this one, which has imported everything: starting Python for each would take most of the time. They print where they
die. Ends with 0 when one gets through, with 1 when one fails otherwise than by kill -9.
"""

import importlib
import itertools
import os
import signal
import sys
import traceback


def main(module, order, *arguments):
    start = importlib.import_module(f"tests.outbox.{module}").start
    for number in itertools.count(1):
        child = os.fork()
        if not child:
            code = 1
            try:
                start(*arguments, number, f"{order}-{number:03}")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        assert os.WTERMSIG(status) == signal.SIGKILL, f"the child of step {number} died by signal {os.WTERMSIG(status)}"
    raise AssertionError("it never gets through")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
