"""Alerts on their way to a topic and to a command: what fails is said, and ends nothing."""

from __future__ import annotations

import json
import re
import sys

import pytest

import metaq
from metaq.clock import SYSTEM
from metaq.pipelines.metrics.alerts import BEGIN, Alert
from metaq.pipelines.metrics.mailing import CommandMail, TopicMail, alert_json
from metaq.spark.cluster.courier import Courier
from tests.support import PATIENCE

ALERT = Alert(
    id="0123456789abcdef", state=BEGIN, rule="lag_seconds > 60", metric="groups", column="lag_seconds", value=61.5,
    threshold=60.0, topic="orders", group="billing", broker="broker-a", since_ms=1_700_000_000_000, window_ms=1_700_000_060_000,
)  # fmt: skip


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_command_gets_the_alert_and_no_shell(tmp_path, caplog):
    """Its words are its own, whatever is in them."""
    heard = tmp_path / "heard; $(touch x)"
    command = python("import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())")
    assert CommandMail([*command, str(heard)], PATIENCE).deliver(ALERT)
    told = json.loads(heard.read_bytes())
    assert (told["id"], told["value"], told["since"]) == ("0123456789abcdef", 61.5, "2023-11-14T22:13:20.000Z")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("command", "seconds", "why"),
    [
        (python("import sys; sys.stderr.write('x' * 9000 + 'no route to pager'); sys.exit(7)"), PATIENCE, "status 7 .*no route to pager"),
        (python("import threading; threading.Event().wait()"), 0.2, "did not end within 0.2 s"),
        (["/no/such/program"], PATIENCE, "cannot be run .*/no/such/program: No such file"),
    ],
)  # fmt: skip
def test_a_command_that_fails_is_said_and_not_tried_again(command, seconds, why, caplog):
    """With the end of what it said itself; one that takes too long is ended."""
    assert CommandMail(command, seconds).deliver(ALERT)
    assert re.search(why, caplog.text)
    assert len(caplog.text) < 2000


def test_a_topic_gets_the_alert_by_its_id_and_state(metaq_broker, caplog):
    """And where nobody can take it, it waits, which is said once."""
    mail = TopicMail(Courier(metaq_broker.namesrv, PATIENCE), "mailed-alerts", SYSTEM, PATIENCE)
    assert mail.deliver(ALERT)
    mail.close()
    with metaq.Reader(metaq_broker.namesrv, "mailed-alerts", start="earliest", stop_at_end=True) as reader:
        (found,) = list(reader)
    assert (found.keys, found.tag, found.body) == (("0123456789abcdef",), "begin", alert_json(ALERT))
    assert caplog.text == ""
    away = TopicMail(Courier("127.0.0.1:1", 0.0), "mailed-alerts", SYSTEM, 0.0)
    assert not away.deliver(ALERT)
    assert not away.deliver(ALERT)
    away.close()
    assert caplog.text.count("waits for topic mailed-alerts") == 1
