"""What docs/archive.md says of replay is so."""

from __future__ import annotations

import re
import subprocess
import sys

import metaq
from metaq.archive import parquet
from metaq.archive.folder import ArchiveFolder
from metaq.client.consumer import replaying
from tests.archive.from_broker import archive_until
from tests.support import PATIENCE, ROOT, environment

PAGE = (ROOT / "docs" / "archive.md").read_text()
REPLAY = PAGE[PAGE.index("## Replay") : PAGE.index("## Folders")]


def test_the_program_runs_as_it_stands(metaq_broker, tmp_path):
    """Every message, by its loop."""
    topic = "replay-page"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        queue = producer.send(topic, b"0").queue
        for number in range(1, 5):
            producer.send(topic, b"%d" % number, queue=queue)
    archive_until(ArchiveFolder(tmp_path / "out"), metaq_broker.namesrv, {queue: 3})
    (text,) = re.findall(r"```python\n(.*?)```", REPLAY, re.DOTALL)
    changed = text.replace("localhost:9876", metaq_broker.namesrv).replace('"orders"', f'"{topic}"')
    changed = changed.replace("archive/orders", str(tmp_path / "out")).replace(
        "        ...\n", "        print(message.body.decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", changed],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", list("01234"))


def test_the_figures_are_true():
    """Sizes that the page names."""
    assert f"of {replaying.QUEUES_AT_ONCE} queues side by side" in REPLAY
    assert f"bodies of {parquet._PAGE_ROWS}" in REPLAY
