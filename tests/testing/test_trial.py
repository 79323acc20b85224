"""Trials: what a run is made of, the command that repeats it, and files that are judged again."""

from __future__ import annotations

import logging
import shlex

import msgspec
import pytest
import typer.main

from metaq.cli.commands import run
from metaq.cli.trial import seeds_of, try_cluster
from metaq.errors import ConfigError
from metaq.testing.checking import Held, Ledger, Place, QueueHolds
from metaq.testing.faketime import VARIABLE
from metaq.testing.trial import MODES, NIGHTLY, Trial, judge_again, run_trial
from metaq.testing.trial.modes import mode_of
from metaq.testing.trial.running import HISTORY, RUN, SCHEDULE, command
from metaq.testing.workload import Load
from tests.testing.checking.histories import usual


@pytest.mark.parametrize("name", MODES)
def test_every_mode_has_faults_that_it_can_have(name):
    """And promises that name the groups."""
    trial = Trial(name)
    assert trial.kinds()
    assert trial.schedule(1).steps
    promises = MODES[name].promises(("g",), ())
    assert promises.groups == ("g",)
    assert "SEND_OK" in promises.kept_statuses
    assert set(NIGHTLY) <= set(MODES)


def test_what_power_takes_is_told_by_the_mode():
    """Readers of a master without a slave see what is not on a disk yet."""
    assert not mode_of("sync").promises((), ("power",)).reads_stay
    assert mode_of("sync").promises((), ("kill",)).reads_stay
    assert mode_of("failover").promises((), ("power",)).reads_stay


def test_wrong_trials_are_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/nowhere")
    for trial, why in (
        (Trial("fast"), "mode 'fast': need one of single, sync"),
        (Trial("sync", faults=("meteor",)), "faults meteor"),
        (Trial("sync", faults=("clock",)), "libfaketime is not installed"),
        (Trial("sync", faults=("zookeeper",)), "no ZooKeeper"),
        (Trial("sync", seconds=0.1), "need 1 s at least"),
    ):
        with pytest.raises(ConfigError, match=why):
            run_trial(trial, 1, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "sync-1").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        run_trial(Trial("sync"), 1, tmp_path)


SHORT = 7.5
TRIALS = [
    Trial(),
    Trial("failover-3", brokers=2, replicas=3, name_servers=2, zookeepers=3, seconds=SHORT, patience=9),
    Trial(
        "sync",
        faults=("kill", "stop"),
        options={"flushDiskType": "ASYNC_FLUSH", "a": "b c"},
        load=Load(("sync", "atomic"), rate=5),
    ),
]


@pytest.mark.parametrize("trial", TRIALS)
def test_the_command_of_a_report_runs_the_same_again(trial, monkeypatch):
    """Every field comes back from its flags."""
    import metaq.testing.trial

    asked = []
    monkeypatch.setattr(metaq.testing.trial, "run_trials", lambda *arguments: iter(asked.append(arguments) or ()))
    words = shlex.split(command(trial, 42))
    assert words[0] == "metaq"
    assert run(words[1:]) == 0
    ((made, seeds, _, _),) = asked
    assert seeds == [42]
    assert made.schedule(42) == trial.schedule(42)
    assert msgspec.structs.replace(made, options=dict(made.options)) == trial


def test_seeds_are_numbers_and_ranges():
    assert seeds_of("3") == [3]
    assert seeds_of("1-3,7") == [1, 2, 3, 7]
    for wrong in ("", "x", "3-1", "1-1000000", "1,,2", "-5"):
        with pytest.raises(typer.BadParameter):
            seeds_of(wrong)


def kept_run(folder, history, failure=None):
    with Ledger(folder / HISTORY) as ledger:
        ledger.write_all(history)
    (folder / SCHEDULE).write_text("seed 5, 15 s\n")
    promises = MODES["sync"].promises((), ())
    kept = {"trial": Trial(), "seed": 5, "promises": promises, "failure": failure}
    (folder / RUN).write_bytes(msgspec.json.encode(kept))


def test_files_of_a_run_are_judged_again(tmp_path, capsys):
    """By the command as well, whose exit code says what was found."""
    kept_run(tmp_path / "good", usual())
    assert judge_again(tmp_path / "good").ok
    before = logging.getLogger("metaq").level
    assert run(["test-cluster", "--judge", str(tmp_path / "good")]) == 0
    assert logging.getLogger("metaq").level == before, "what runs next in this process has its log"
    broken = [event for event in usual() if not (isinstance(event, Held) and event.place == Place("t@b:1", 0))]
    broken = [msgspec.structs.replace(one, begin=0) if isinstance(one, QueueHolds) else one for one in broken]
    kept_run(tmp_path / "bad", broken)
    capsys.readouterr()
    assert run(["test-cluster", "--judge", str(tmp_path / "bad"), "--json"]) == 1
    found = msgspec.json.decode(capsys.readouterr().out)
    assert (found["ok"], found["mode"], found["seed"]) == (False, "sync", 5)
    assert "acked is kept" in {one["check"] for one in found["violations"]}
    assert (
        "to repeat it, as far as time allows: metaq test-cluster --mode sync --seeds 5 --seconds 15" in found["report"]
    )
    with pytest.raises(ConfigError, match=r"is not the folder of a run: run\.json"):
        judge_again(tmp_path)


def test_a_run_that_did_not_get_well_is_a_failed_one(tmp_path):
    """Whatever its history shows."""
    kept_run(tmp_path, usual(), ("replicas get in sync", "AssertionError: not in 60 s"))
    result = judge_again(tmp_path)
    assert not result.ok
    assert "gets well: replicas get in sync: AssertionError" in result.text


def test_schedules_are_printed_and_nothing_runs(capsys):
    assert run(["test-cluster", "--schedule", "--seeds", "4,6", "--seconds", f"{SHORT:g}"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{Trial(seconds=SHORT).schedule(4)}\n{Trial(seconds=SHORT).schedule(6)}\n"
    assert run(["test-cluster", "-o", "novalue"]) == 2
    assert try_cluster.__doc__
