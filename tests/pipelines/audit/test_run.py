"""`metaq pipeline run audit` as its users run it: exit status, killed, and run again."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import pytest

import metaq
from metaq.pipelines.run import status_of
from tests.pipelines import commands
from tests.support import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]


def words(broker, folder):
    given = ["-n", broker.namesrv, "--topic", "audited", "--folder", str(folder / "audit"), "--group", "billing"]
    return [*given, "--grace-seconds", "0"]


def auditing(broker, folder):
    return commands.pipeline(folder / "audit.log", "audit", *words(broker, folder))


def test_the_exit_status_says_whether_it_is_clean(spark, metaq_broker, tmp_path):
    """1 with a message missing, also after a kill -9 in the midst of it; 0 where one may be missing."""
    namesrv, place = metaq_broker.namesrv, tmp_path / "audit"
    with metaq.Producer(namesrv, trace=True) as producer:
        sent = [producer.send("audited", b"x", keys=[f"k{n}"]).message_id for n in range(5)]
    with metaq.Consumer(namesrv, group="billing", topics="audited", start="earliest", trace=True) as consumer:
        for _ in sent:
            with contextlib.suppress(metaq.Later, metaq.Reject), consumer.receive(PATIENCE) as message:
                if message.message_id == sent[3]:
                    raise metaq.Later(16)
                if message.message_id == sent[4]:
                    raise metaq.Reject
    with auditing(metaq_broker, tmp_path) as running:
        for line in running.stdout:
            if "deliveries" in line:
                break
        os.killpg(running.pid, signal.SIGKILL)
    assert status_of(place).state == "lost"
    assert not (place / "audit.json").exists()

    done = commands.run_here(spark, "audit", *words(metaq_broker, tmp_path))
    assert done.returncode == 1, done.stderr
    assert "NOT CLEAN: group billing: 1 message is missing, and allowMissing is 0" in done.stdout
    assert "NOT CLEAN: group billing: 1 message is a dead letter, and allowDead is 0" in done.stdout
    assert sent[3] in (place / "report.html").read_text()
    assert not (place / "_making").exists()

    done = commands.run_here(
        spark, "audit", *words(metaq_broker, tmp_path), "--allow-missing", "1", "--allow-dead", "1", "--json"
    )
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["breaches"], last["groups"][0]["counts"]["missing"]) == ([], 1)
    assert status_of(place).state == "ended"
