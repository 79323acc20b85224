"""A process that has used a client forks, as `gunicorn --preload` does: the child ends as it wants, however it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.client.forking_program import ENDS, KINDS
from tests.support import PATIENCE, ROOT, environment


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_forked_child_ends_cleanly(metaq_broker, loop):
    """It was ended by SIGSEGV: names were looked up in libuv's thread pool, whose threads a child does not have.

    libuv joins them when the process exits. `localhost` is such a name.
    """
    namesrv = "localhost:" + metaq_broker.namesrv.rpartition(":")[2]
    done = subprocess.run(
        # Python 3.12 and newer warn of every fork beside threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.client.forking_program", namesrv, loop],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{kind.__name__} {end} 0" for kind in KINDS for end in ENDS]
    assert done.stderr == ""
