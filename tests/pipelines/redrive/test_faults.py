"""Crashes of a redrive at each point between its plan, the broker's decision and its ledger: nothing is lost or sent twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from metaq.admin import Admin
from metaq.errors import ConfigError, ConnectionFailed
from metaq.pipelines.redrive.fence import Fence, row_of
from metaq.pipelines.redrive.job import _Redrive
from metaq.pipelines.redrive.ledger import Ledger
from metaq.store.offline.reader import StoreReader
from tests.pipelines.commands import run_here
from tests.pipelines.redrive.killed_redrive import AFTER_DECISION, AFTER_PLAN, AFTER_SECOND_DECISION
from tests.pipelines.redrive.support import JSON, Shop
from tests.spark.jvm import java_options
from tests.support import ROOT, WHOLE_PATIENCE, environment, metaq_command

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
BODIES = [b"%03d" % number for number in range(10)]


class Crash(BaseException):
    """The process is gone: nothing of it goes on."""


@pytest.fixture
def shop(metaq_broker, tmp_path):
    shop = Shop(metaq_broker.namesrv, tmp_path / "redrive")
    shop.die(BODIES)
    return shop


@contextlib.contextmanager
def crash(monkeypatch, owner, name, *, after):
    """Everything ends before, or after, the first call of a method."""
    real = getattr(owner, name)

    def gone(*args, **named):
        if after:
            real(*args, **named)
        raise Crash

    def unable(*_):
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, gone)
        patch.setattr(_Redrive, "_ended_well", unable)
        with pytest.raises(Crash):
            yield


@pytest.mark.parametrize("after", [False, True], ids=["before the decision", "after the decision"])
def test_a_crash_around_the_decision(spark, shop, monkeypatch, after):
    """The next run finds out which it was, and a writer that was given up comes too late."""
    writers = []
    real = _Redrive._write
    monkeypatch.setattr(_Redrive, "_write", lambda job, step: (writers.append((job, step)), real(job, step)))
    with crash(monkeypatch, _Redrive, "_write", after=after):
        shop.redrive(spark, batch=4)
    assert len(shop.redriven()) == (4 if after else 0)
    found = shop.redrive(spark, batch=4, select="'second' as tag")
    assert (found["sent"], found["sent_before"]) == ((6, 4) if after else (10, 0))
    told = "were sent" if after else "were not sent, and are looked at anew"
    assert f"step 1 of an earlier run had no end: its 4 messages {told}" in [line for line, _ in shop.lines]
    assert Counter(message.body for message in shop.redriven()) == Counter(BODIES)
    job, step = writers[-1]
    late = type(step)(number=1, queues=step.queues)
    with pytest.raises(Exception, match="StaleBatch"):
        real(job, late)
    assert len(shop.redriven()) == 10


def test_a_crash_of_the_one_that_finds_out(spark, shop, monkeypatch):
    """Before it has written down what it found."""
    with crash(monkeypatch, _Redrive, "_write", after=False):
        shop.redrive(spark)
    with crash(monkeypatch, Ledger, "end", after=False):
        shop.redrive(spark)
    assert shop.redrive(spark)["sent"] == 10
    assert Counter(message.body for message in shop.redriven()) == Counter(BODIES)


def test_a_write_that_fails_although_its_decision_stands(spark, shop, monkeypatch):
    """The run finds out and goes on; one that fails before it ends the run, and nothing of the step is there."""
    real, faults = _Redrive._write, []

    def write(job, step):
        if not faults:
            faults.append("after")
            real(job, step)
            raise ConnectionFailed("the answer was lost")
        if step.number == 3:
            raise ConnectionFailed("the broker is away")
        real(job, step)

    monkeypatch.setattr(_Redrive, "_write", write)
    with pytest.raises(ConnectionFailed, match="the broker is away"):
        shop.redrive(spark, batch=3)
    assert len(shop.redriven()) == 6
    monkeypatch.setattr(_Redrive, "_write", real)
    found = shop.redrive(spark, batch=3)
    assert (found["sent"], found["sent_before"]) == (4, 6)
    assert Counter(message.body for message in shop.redriven()) == Counter(BODIES)


def test_an_end_that_cannot_be_found_out_now_is_found_out_later(spark, shop, monkeypatch):
    """The run fails with what the write failed with."""
    real = _Redrive._write

    def write(job, step):
        real(job, step)
        raise ConnectionFailed("the answer was lost")

    settle = Fence.settle
    with monkeypatch.context() as patch:
        patch.setattr(_Redrive, "_write", write)
        patch.setattr(
            Fence, "settle", lambda fence, ledger: (_ for _ in ()).throw(ConnectionFailed("away")) if ledger.planned else settle(fence, ledger)
        )  # fmt: skip
        with pytest.raises(ConnectionFailed, match="the answer was lost"):
            shop.redrive(spark)
    found = shop.redrive(spark)
    assert (found["sent"], found["sent_before"]) == (0, 10)
    assert Counter(message.body for message in shop.redriven()) == Counter(BODIES)


def test_a_broker_that_has_forgotten_stops_the_run(spark, shop):
    """Before anything is sent."""
    shop.redrive(spark, cap=3)
    head = Ledger(shop.folder).head
    with Admin(shop.namesrv) as admin:
        admin.forget_transaction(row_of(head.ledger), row=True)
    with pytest.raises(ConfigError, match="remembers nothing of this redrive"):
        shop.redrive(spark)
    assert len(shop.redriven()) == 3


def test_a_command_that_is_killed_again_and_again_sends_each_once(spark, metaq_broker, shop):
    """kill -9 between plan and decision, between decision and ledger, in a later step; then to its end, in JSON lines."""
    file = shop.folder.parent / "redrive.toml"
    file.write_text(
        f'pipeline = "redrive"\nnameServers = "{shop.namesrv}"\ngroup = "{shop.group}"\nfolder = "{shop.folder}"\n'
        "batch = 3\ndecode = 'utf8'\nwhere = \"text >= '001'\"\nselect = '''\n  concat(text, ',again') as body,\n  'again' as tag\n'''\n"
        '[spark]\nmaster = "local[2]"\n'
    )
    env = environment(JDK_JAVA_OPTIONS=java_options())
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env["PYTHONPATH"]])
    for point in (AFTER_PLAN, AFTER_DECISION, AFTER_SECOND_DECISION):
        running = subprocess.Popen(
            [sys.executable, "-m", "tests.pipelines.redrive.killed_redrive", point, str(file)],
            cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        said = running.communicate(timeout=WHOLE_PATIENCE)[0]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        assert running.returncode == -signal.SIGKILL, said
        assert list((shop.folder / "_steps").glob("*.planned.json")), said
    done = run_here(spark, "redrive", "-c", str(file), "--json")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["left"], last["not_chosen"], last["sent"] + last["sent_before"]) == (0, 1, 9)
    records = StoreReader(metaq_broker.data).records(topics=[shop.topic])
    stored = [message.body for message in records if "REDRIVE_ID" in message.properties]
    assert Counter(stored) == Counter(body + b",again" for body in BODIES[1:])


def test_a_wrong_expression_is_one_line_of_the_command(metaq_broker, tmp_path):
    """And a topic that nobody knows is told before Spark starts."""
    shop = Shop(metaq_broker.namesrv, tmp_path / "redrive")
    shop.orders(2)
    command = ["pipeline", "run", "redrive", "-n", shop.namesrv, "--folder", str(shop.folder), "--decode", "json"]
    more = ["--schema", JSON["schema"], "--where", "value.idd = 1", "--dry-run", "--master", "local[2]"]
    wrong = ((2, shop.group, "where: [FIELD_NOT_FOUND]"), (3, "unknown", "the group unknown has no dead letters"))
    for status, group, why in wrong:
        done = subprocess.run(
            metaq_command(*command, "--group", group, *more),
            env=environment(JDK_JAVA_OPTIONS=java_options()), capture_output=True, text=True, check=False, timeout=WHOLE_PATIENCE,
        )  # fmt: skip
        lines = [
            line for line in done.stderr.splitlines() if line and not line.startswith(("NOTE: ", "WARNING: Using"))
        ]
        assert (done.returncode, len(lines)) == (status, 1), done.stderr
        assert why in lines[0]
