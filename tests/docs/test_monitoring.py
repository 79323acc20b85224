"""The program of docs/monitoring.md for clients runs; tests/spark/source/test_metrics_listener.py has that for queries."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.pages import blocks, replaced
from tests.metrics.receiver import values
from tests.support import PATIENCE, ROOT, environment

PAGE = (ROOT / "docs" / "monitoring.md").read_text()
CLIENTS, _ = blocks(PAGE, "python")


def test_what_clients_have_done_is_in_the_registry(metaq_broker, tmp_path):
    """One message sent, and one consumed."""
    path = tmp_path / "program.py"
    path.write_text(replaced(CLIENTS, {"localhost:9876": metaq_broker.namesrv, '"orders"': '"monitoring-page"'}))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment()
    )
    assert (done.returncode, done.stderr) == (0, "")
    body, _, shown = done.stdout.partition("\n")
    assert body == "paid"
    told = values(shown)
    print({name: value for name, value in told.items() if name.startswith("metaq")})
