"""The programs of docs/order.md run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import metaq
from metaq.client.consumer.delivery.leases import LEASE_SECONDS, RENEW_SECONDS
from metaq.client.consumer.delivery.orderly import FIRST_PAUSE, LAST_PAUSE
from metaq.client.consumer.options import USUAL
from metaq.options import BrokerOptions
from tests.support import PATIENCE, ROOT, environment, run_metaq

PAGE = (ROOT / "docs" / "order.md").read_text()


def test_the_program_that_consumes_in_order_runs(metaq_broker, tmp_path):
    """Every order's steps come in their order."""
    block = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "orderly=True" in block)
    program = tmp_path / "program.py"
    program.write_text(block.replace("localhost:9876", metaq_broker.namesrv))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment()
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{order} created, paid, packed, sent" for order in (4711, 4712, 4713)]


def test_the_program_that_sends_in_order_and_the_commands_run(metaq_broker, tmp_path):
    """In one queue, in order; then the list of the topic's queues is set, shown and deleted as the page says."""
    blocks = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)
    [program] = [block for block in blocks if "ordering_key=" in block and "orderly" not in block]
    [commands] = [block for block in blocks if "metaq topic order set" in block]
    path = tmp_path / "program.py"
    path.write_text(program.replace("localhost:9876", metaq_broker.namesrv).replace('"orders"', '"order-docs"'))
    subprocess.run([sys.executable, str(path)], timeout=PATIENCE, check=True, env=environment())
    with metaq.Reader(metaq_broker.namesrv, "order-docs", stop_at_end=True) as reader:
        messages = list(reader)
    assert [message.body for message in messages] == [b"created", b"paid", b"shipped"]
    assert len({message.queue for message in messages}) == 1
    broker = messages[0].queue.broker
    for line in commands.replace("orders", "order-docs").splitlines():
        words = shlex.split(line.partition("#")[0].replace("broker-a:4;broker-b:4", f"{broker}:4"))
        assert words[0] == "metaq"
        done = run_metaq(*words[1:], "-n", metaq_broker.namesrv)
        assert done.returncode == 0, done.stderr


def test_numbers_of_the_page_are_true():
    """Pauses, locks and time-outs, as they are in the code."""
    assert f"after {FIRST_PAUSE:g} s, 2 s, 4 s … {LAST_PAUSE:g} s" in PAGE
    assert f"asks again every {RENEW_SECONDS:g} s" in PAGE
    assert f"could not be renewed for\n  {LEASE_SECONDS:g} s" in PAGE
    assert f"not finished within {USUAL.leave:g} s" in PAGE
    assert f"it ends, {BrokerOptions().rebalance_lock_max_live_time // 1000} s after its" in PAGE
    assert metaq.Consumer.__init__.__kwdefaults__["consume_timeout"] == 900.0
