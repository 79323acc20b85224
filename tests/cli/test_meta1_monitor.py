"""`metaq meta1 monitor`: limits, what is news, when offsets are looked at, and the command of an alarm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from metaq.admin.monitoring.judging import (
    Changes,
    CheckResult,
    Limits,
    Metaq1Gap,
    SeenServer,
    State,
    UnknownFigure,
    judge,
    judge_gaps,
)
from metaq.admin.monitoring.reading import WatchedServer
from metaq.admin.offsets.places import OffsetsInDatabase, OffsetsInZookeeper, Place
from metaq.cli.meta1 import machine, monitor
from metaq.errors import ConnectionFailed
from metaq.registry.offset_table import PartitionOffset
from tests.support import run_metaq

FINE = SeenServer(
    server="10.9.9.9:8123", probe=0.1, put_failed=9, load=8.0, disk=0.85, memory=0.80, connections=150,
    per_ip={"10.0.0.1": 5}, prepared=9,
)  # fmt: skip


class TestClock:
    __test__ = False

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def states(seen: SeenServer, limits: Limits | None = None) -> dict[str, State]:
    return {one.check: one.state for one in judge(seen, limits or Limits())}


def test_at_the_limits_of_1x_nothing_is_an_alarm() -> None:
    """Each check has a finding."""
    assert states(FINE) == dict.fromkeys(
        ("probe", "put-failed", "load", "disk", "memory", "connections", "connections-per-ip", "prepared"), State.OK
    )


@pytest.mark.parametrize(
    ("check", "field", "value"),
    [
        ("probe", "probe", None), ("put-failed", "put_failed", 10), ("load", "load", 8.01), ("disk", "disk", 0.851),
        ("memory", "memory", 0.801), ("connections", "connections", 151), ("connections-per-ip", "per_ip", {"10.0.0.1": 6}),
        ("prepared", "prepared", 10),
    ],
)  # fmt: skip
def test_beyond_a_limit_is_an_alarm_and_the_unknown_is_unknown(check: str, field: str, value: Any) -> None:
    """Of that check alone."""
    found = states(structs.replace(FINE, **{field: value}))
    assert found.pop(check) == State.ALARM
    assert set(found.values()) == {State.OK}
    found = states(structs.replace(FINE, **{field: UnknownFigure("nobody says")}))
    assert found.pop(check) == State.UNKNOWN
    assert set(found.values()) == {State.OK}


def test_gaps_are_told_by_group() -> None:
    """Behind and ahead; the worst partition, and how many others."""
    gaps = [
        Metaq1Gap("a", "t", "0-0", 0),
        Metaq1Gap("b", "t", "0-0", 7),
        Metaq1Gap("b", "t", "0-1", 900),
        Metaq1Gap("c", "t", "0-0", -1),
    ]
    a, b, c = judge_gaps("s", gaps, Limits())
    assert (a.state, b.state, c.state) == (State.OK, State.ALARM, State.ALARM)
    assert "900 bytes behind the end of partition 0-1 of t, and 1 others" in b.text
    assert "1 bytes ahead of" in c.text
    assert {one.state for one in judge_gaps("s", gaps, Limits(offset_gap=900, offset_ahead=1))} == {State.OK}


def test_only_changes_are_news() -> None:
    """An alarm once, and once more when it is over; what was fine from the start is no news."""
    changes = Changes()
    good, bad = (CheckResult("s", "disk", state, "") for state in (State.OK, State.ALARM))
    assert [changes.news([one]) for one in (good, bad, bad, good, good)] == [[], [bad], [], [good], []]


class Answers:
    """Stands for an Admin: tells what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = self.silent = False

    def metaq1_seen(self, place: WatchedServer) -> SeenServer:
        return structs.replace(FINE, server=place.address)

    def metaq1_offsets(self, place: Place) -> tuple[list[PartitionOffset], dict[Any, str]]:
        self.asked.append(str(place))
        if self.away and "database" not in str(place):
            raise ConnectionFailed("ZooKeeper cannot be reached")
        return [PartitionOffset("g", "t", "0-0", 5)], {}

    def metaq1_gaps(self, rows: list[PartitionOffset], addresses: list[str]) -> dict[str, list[Metaq1Gap]]:
        assert {row.group for row in rows} == {"g"}
        if self.silent:
            raise ConnectionFailed("no answer")
        return {addresses[0]: [Metaq1Gap("g", "t", "0-0", 5)]}


def test_offsets_are_looked_at_each_six_hours_and_a_lost_zookeeper_at_once_again() -> None:
    """The other checks at each look."""
    clock, answers = TestClock(), Answers()
    look = monitor.Look(
        answers,
        [WatchedServer(address="10.9.9.9:8123")],
        Limits(),
        {"zookeeper": OffsetsInZookeeper("zk")},
        None,
        21_600,
        clock,
    )  # type: ignore[arg-type]
    counts = []
    for now, away in (
        (0, False),
        (5, False),
        (21_599, False),
        (21_600, True),
        (21_605, True),
        (21_610, False),
        (21_615, False),
    ):
        clock.now, answers.away = now, away
        checks = {one.check: one.state for one in look()}
        counts.append((len(answers.asked), checks.get("zookeeper"), checks.get("offset-gap")))
    alarm, ok = State.ALARM, State.OK
    assert counts == [
        (1, ok, alarm), (1, None, None), (1, None, None), (2, alarm, None), (3, alarm, None), (4, ok, alarm), (4, None, None),
    ]  # fmt: skip


def test_offsets_in_zookeeper_and_a_database_are_judged_together_or_not_at_all() -> None:
    """Without those of one of them, groups would look as if they were behind. A server that does not answer has no gaps."""
    answers = Answers()
    kept = {"zookeeper": OffsetsInZookeeper("zk"), "database": OffsetsInDatabase("mysql://a:secret@h/d", "database")}
    address = "10.9.9.9:8123"
    look = monitor.Look(answers, [WatchedServer(address=address)], Limits(), kept, None, 21_600, TestClock())  # type: ignore[arg-type]

    def seen() -> dict[str, State | None]:
        checks = {one.check: one.state for one in look()}
        return {name: checks.get(name) for name in ("zookeeper", "database", "offset-gap")}

    answers.away = True
    assert seen() == {"zookeeper": State.ALARM, "database": State.OK, "offset-gap": None}
    answers.away, answers.silent = False, True
    assert seen() == {"zookeeper": State.OK, "database": State.OK, "offset-gap": State.UNKNOWN}
    answers.silent = False
    assert seen() == {"zookeeper": State.OK, "database": State.OK, "offset-gap": State.ALARM}
    assert not any("secret" in one for one in answers.asked)


def test_a_lasting_watch_tells_changes_until_it_is_interrupted() -> None:
    """It pauses between two looks."""
    looks = iter([State.OK, State.ALARM, State.ALARM, State.OK])
    told: list[State] = []
    pauses: list[float] = []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        monitor.watch(
            lambda: [CheckResult("s", "disk", next(looks), "")], lambda one: told.append(one.state), 5.0, wait
        )
    assert told == [State.ALARM, State.OK]
    assert pauses == [5.0] * 4


def test_the_command_of_an_alarm_gets_words_and_no_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text with shell characters is one word; one that is missing, fails or hangs is told."""
    bad = CheckResult("s", "probe", State.ALARM, f"$(touch {tmp_path}/hacked); `x` 'y'")
    out = tmp_path / "out"
    code = f"import pathlib,sys; pathlib.Path({str(out)!r}).write_text('|'.join(sys.argv[1:]))"
    monitor.run_command(f'{sys.executable} -c "{code}"', bad)
    assert out.read_text() == f"alarm|probe|s||{bad.text}"
    assert not (tmp_path / "hacked").exists()
    monitor.run_command("/nowhere/to/be/found", bad)
    monitor.run_command(f'{sys.executable} -c "raise SystemExit(3)"', bad)
    monkeypatch.setattr(monitor, "COMMAND_SECONDS", 0.2)
    monitor.run_command(f"{sys.executable} -c \"input() if 0 else __import__('threading').Event().wait()\"", bad)
    told = capsys.readouterr().err
    for part in ("cannot be run", "exit code 3", "more than 0.2 s"):
        assert part in told


def test_addresses_of_connections_as_the_system_has_them() -> None:
    """IPv4, IPv6, and IPv4 in IPv6; a remote host is not here."""
    assert machine._address("0100007F") == "127.0.0.1"
    assert machine._address("0000000000000000FFFF00000100007F") == "127.0.0.1"
    assert machine._address("00000000000000000000000001000000") == "::1"
    assert [machine.is_here(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "db")] == [True] * 3 + [
        False
    ] * 2


def test_a_server_that_is_away_is_an_alarm() -> None:
    """And exit code 1; two servers have no one --broker."""
    done = run_metaq("meta1", "monitor", "127.0.0.1:1", "--topic", "t", "--once")
    assert done.returncode == 1
    assert "cannot be reached" in done.stdout
    done = run_metaq("meta1", "monitor", "127.0.0.1:1", "127.0.0.1:2", "--broker", "127.0.0.1:3", "--once")
    assert done.returncode == 2
