"""The programs of docs/atomic.md run, and what they send is delivered once; its tables are true."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import metaq
from metaq.client.conversation.staged.atomic import DELIVERY_SECONDS
from metaq.client.producing.atomic import OPEN_BYTES_MAX
from metaq.client.producing.courier import AVOID_SECONDS
from tests.support import PATIENCE, ROOT, environment, eventually

PAGE = (ROOT / "docs" / "atomic.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[HANDLING] = [block for block in BLOCKS if "except metaq.TransactionFailed" in block]


def bodies_of(namesrv, topic):
    with metaq.Reader(namesrv, topic, stop_at_end=True) as reader:
        return sorted(message.body for message in reader)


def test_programs_of_the_page_run(metaq_broker, tmp_path):
    """The block, asyncio, and the one beside a database, one after the other as a reader would try them."""
    program = tmp_path / "program.py"
    text = "\n".join(block for block in BLOCKS if block is not HANDLING)
    for topic in ("orders", "stock", "invoices"):
        text = text.replace(f'"{topic}"', f'"docs_atomic_{topic}"')
    program.write_text(text.replace("localhost:9876", metaq_broker.namesrv))
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["COMMIT 2"]
    wanted = {
        "orders": [b'{"id": 42}', b'{"id": 43}', b'{"id": 45}'],
        "stock": [b'{"item": "desk", "taken": 2}', b'{"item": "lamp", "taken": 1}'],
        "invoices": [b'{"id": 45}'],
    }
    for topic, bodies in wanted.items():
        name = f"docs_atomic_{topic}"
        eventually(
            lambda name=name, all_of=bodies: len(bodies_of(metaq_broker.namesrv, name)) >= len(all_of), what=name
        )
        assert bodies_of(metaq_broker.namesrv, name) == bodies


def test_what_the_page_does_after_a_failure(metaq_broker):
    """Each state has its way; a transaction that comes through takes none of them."""
    seen = []

    class Failing:
        def __init__(self, state):
            self.state = state

        def atomic(self):
            raise metaq.TransactionFailed("why", "4711@broker-a", self.state)

    names = {"metaq": metaq, "keep_for_later": seen.append, "try_again": lambda: seen.append("again")}
    for state in ("unknown", "open", "rolled back"):
        exec(HANDLING, {**names, "producer": Failing(state)})
    with metaq.Producer(metaq_broker.namesrv) as producer:
        exec(HANDLING.replace('"orders"', '"docs_atomic_handled"'), {**names, "producer": producer})
    assert seen == ["4711@broker-a", "again", "again"]
    assert bodies_of(metaq_broker.namesrv, "docs_atomic_handled") == [b'{"id": 44}']


def test_tables_of_the_page_are_true():
    """Every phase, every state of a failure that `metaq` knows, every option with its default."""
    for phase in metaq.Phase:
        assert f"| `{phase.name}` |" in PAGE, phase
    for state in re.findall(r'^    "([\w ]+)": |\. "([\w ]+)": ', metaq.TransactionFailed.__doc__ or "", re.MULTILINE):
        assert f'| `"{"".join(state)}"` |' in PAGE, state
    assert len(re.findall(r'^\| `"[\w ]+"` \|', PAGE, re.MULTILINE)) == 4
    for name, parameter in inspect.signature(metaq.Producer.atomic).parameters.items():
        if name != "self":
            assert re.search(rf"^\| `{name}` \| {parameter.default:g} s \|", PAGE, re.MULTILINE), name
    assert f"after {DELIVERY_SECONDS:g} s it is waited for no longer" in PAGE
    assert f"left out for {AVOID_SECONDS:g} s" in PAGE
    assert f"more than {OPEN_BYTES_MAX // 1024**2} MiB" in PAGE
