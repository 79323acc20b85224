"""The programs of docs/transactions.md run, and what they send is delivered once."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import metaq
from metaq.options import BrokerOptions, StoreOptions
from tests.support import PATIENCE, ROOT, environment, eventually

PAGE = (ROOT / "docs" / "transactions.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_programs_of_the_page_run(metaq_broker, tmp_path):
    """The block, the listener and asyncio, one after the other as a reader would try them."""
    topic = "docs_transactions"
    program = tmp_path / "program.py"
    program.write_text(
        "\n".join(BLOCKS).replace("localhost:9876", metaq_broker.namesrv).replace('"payments"', f'"{topic}"')
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "TransactionOutcome.COMMIT Told.HANDED_OVER",
        "SendStatus.SEND_OK TransactionOutcome.COMMIT Told.HANDED_OVER",
    ]

    def delivered():
        with metaq.Reader(metaq_broker.namesrv, topic, stop_at_end=True) as reader:
            return sorted(message.body for message in reader)

    wanted = [b"30 for anna", b"40 for bela", b"50 for carl"]
    eventually(lambda: len(delivered()) >= len(wanted), what="all three")
    assert delivered() == wanted


def test_tables_of_the_page_are_true():
    """Every value of `Told`, every option of the producer and of the broker, with its default."""
    for told in metaq.Told:
        assert f"| `{told.name}` |" in PAGE, told
    for name, parameter in inspect.signature(metaq.TransactionProducer).parameters.items():
        if name in {"namesrv", "options"}:
            continue
        default = "" if parameter.default is inspect.Parameter.empty else parameter.default
        shown = f"`{default}`" if isinstance(default, bool) else str(default)
        assert re.search(rf"^\| `{name}` \| *{re.escape(shown)} *\|", PAGE, re.MULTILINE), name
    table = BrokerOptions().properties() | StoreOptions().properties()
    rows = re.findall(r"^\| `(\w+)` \| `?([\w ]+?)`? \| ", PAGE.partition("## The broker")[2], re.MULTILINE)
    assert len(rows) == 5
    for name, default in rows:
        assert table[name] == re.sub(r" |ms|h$", "", default), name
