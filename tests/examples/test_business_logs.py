"""The query of the log pipeline: what it answers from the archive is what services logged."""

from __future__ import annotations

import json
import threading
import uuid

import pytest

import metaq
from metaq.admin import Admin
from tests.examples.gallery import PICTURE_BYTES_MAX, loaded
from tests.spark.running import finished
from tests.support import eventually

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")


@pytest.mark.spark
def test_the_archive_answers_which_service_failed_when(spark, metaq_broker, tmp_path, capsys, monkeypatch):
    """By second, as counted by hand from the topic; a message that is no record is archived and left out of the answer."""
    example = loaded("business_logs", monkeypatch)
    namesrv, topic, stop = metaq_broker.namesrv, f"logs-{uuid.uuid4().hex[:8]}", threading.Event()
    with Admin(namesrv) as admin:
        admin.create_topic(topic, queues=2)
        services = [
            threading.Thread(target=example.run_service, args=(name, namesrv, stop, topic)) for name in example.SERVICES
        ]
        for thread in services:
            thread.start()
        try:
            eventually(lambda: admin.describe_topic(topic).messages > 600, what="600 records")
        finally:
            stop.set()
            for thread in services:
                thread.join()
    with metaq.Producer(namesrv) as producer:
        producer.send(topic, b"nonsense")
    finished(lambda: example.archive(spark, namesrv, tmp_path / "archive", once=True, topic=topic))

    counts: dict[tuple[str, str], list[int]] = {}
    with metaq.Reader(namesrv, topic, start="earliest", stop_at_end=True) as reader:
        for message in reader:
            if message.body != b"nonsense":
                record = json.loads(message.body)
                found = counts.setdefault((record["service"], record["time"][:19]), [])
                found.append(record["extra"]["ms"] if record["level"] != "ERROR" else -record["extra"]["ms"])
    answer = example.ask(tmp_path / "archive")
    rows = answer.to_pylist()
    assert [
        (row["service"], row["second"].strftime("%Y-%m-%dT%H:%M:%S"), row["requests"], row["failed"]) for row in rows
    ] == [
        (service, second, len(found), sum(ms < 0 for ms in found))
        for (service, second), found in sorted(counts.items())
    ]
    for row, (_, found) in zip(rows, sorted(counts.items()), strict=True):
        assert min(map(abs, found)) <= row["ms"] <= max(map(abs, found))
    example.tell(answer)
    for service, line in zip(sorted(example.SERVICES), capsys.readouterr().out.splitlines(), strict=True):
        mine = [ms for (name, _), found in counts.items() for ms in found if name == service]
        assert line.startswith(f"{service}: {len(mine)} requests, {sum(ms < 0 for ms in mine)} failed, most of them, ")
    example.draw(answer, tmp_path / "logs.svg")
    assert len((tmp_path / "logs.svg").read_bytes()) < PICTURE_BYTES_MAX
