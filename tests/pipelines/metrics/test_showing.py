"""What is read back from a folder, and drawn: in the terminal and as a picture."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest

from metaq.clock import SYSTEM
from metaq.errors import ConfigError
from metaq.pipelines.metrics.alerts import BEGIN, END, Alert
from metaq.pipelines.metrics.folder import MetricsFolder, check_place, guard
from metaq.pipelines.metrics.following import Known
from metaq.pipelines.metrics.reading import over_brokers, read_metrics
from metaq.pipelines.metrics.state import Closed, Limits, MetricsState, Saved
from metaq.pipelines.metrics.tables import tables_of
from metaq.pipelines.metrics.windows import MetricSeries, MetricWindow
from tests.support import ROOT, run_metaq

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "metrics.md").read_text()
W = 60_000
NOW = SYSTEM.now_ms() // W * W
BEGIN_MS = NOW - 60 * W


def measured(minute: int, topic: str, broker: str, seed: int) -> list[Closed]:
    """One window of everything, of a day that gets busier."""
    chance = np.random.default_rng([seed, minute])
    count = int((200 if topic == "orders" else 60) * (1.5 + math.sin(minute / 9 + seed)) * 60)
    messages, delivered, group, own = MetricWindow(), MetricWindow(), MetricWindow(), MetricWindow()
    messages.count("messages", count)
    messages.count("bytes", count * (240 if topic == "orders" else 900))
    messages.spread("born_stored").add(chance.lognormal(1.2, 0.6, count).astype(np.int64))
    delivered.count("deliveries", count)
    delivered.count("failed", count // 500)
    waited = chance.lognormal(3.0 if not 30 <= minute < 40 else 6.5, 0.7, count).astype(np.int64)
    delivered.spread("stored_consumed").add(waited)
    delivered.spread("born_consumed").add(waited + 3)
    lag = 40 if not 30 <= minute < 42 else 40 + (minute - 30) * 900 if minute < 37 else 40 + (42 - minute) * 1200
    group.count("consumed", count)
    group.count("consumed_bytes", count * 240)
    group.level("lag_messages", lag)
    group.level("lag_seconds", lag / 400)
    own.count("put_messages", count)
    own.count("put_bytes", count * 300)
    own.count("got_messages", count)
    start = BEGIN_MS + minute * W
    return [
        Closed(MetricSeries("messages", topic, broker=broker), start, messages, late=False),
        Closed(MetricSeries("deliveries", topic, "billing", broker), start, delivered, late=False),
        Closed(MetricSeries("groups", topic, "billing", broker), start, group, late=False),
        Closed(MetricSeries("brokers", broker=broker), start, own, late=False),
    ]


def alert(state: str, minute: int) -> Alert:
    return Alert(
        id="a1", state=state, rule="lag_seconds > 5 for 3", metric="groups", column="lag_seconds", value=12.5, threshold=5,
        topic="orders", group="billing", broker="broker-a", since_ms=BEGIN_MS + 32 * W, window_ms=BEGIN_MS + minute * W,
    )  # fmt: skip


def folder_of(place: Path, minutes: int) -> Path:
    """A folder as the pipeline leaves it, with a window that is still open."""
    folder = MetricsFolder(place)
    over = [
        (MetricSeries("messages", topic, broker="broker-a"), BEGIN_MS + minutes * W) for topic in ("orders", "payments")
    ]
    state = MetricsState(Saved(query="q", window_ms=W, began_ms=0, over=over), Limits(window_ms=W), (), Known())
    place.mkdir()
    closed = [
        one
        for minute in range(minutes)
        for number, (topic, broker) in enumerate(
            (("orders", "broker-a"), ("orders", "broker-b"), ("payments", "broker-a"))
        )
        for one in measured(minute, topic, broker, number)
    ]
    folder.save(state, None, tables_of(closed, [alert(BEGIN, 34), alert(END, 42)], W))
    state.fold_rows(
        [{"kind": "stored", "topic": "orders", "broker": "broker-a", "start_ms": BEGIN_MS + minutes * W, "messages": 7,
          "bytes": 70, "data": MetricWindow().spread("born_stored").encode()}]
    )  # fmt: skip
    folder.save(state, 0, {})
    return place


def test_what_was_saved_is_read_back_with_what_is_open(tmp_path):
    """Every window, exactly, late ones added to theirs, and the brokers of a topic together."""
    place = folder_of(tmp_path / "m", 3)
    found = read_metrics(place)
    assert found.window_ms == W
    expected = [one for minute in range(3) for one in measured(minute, "orders", "broker-b", 1)]
    for one in expected:
        if one.series.metric != "brokers":
            assert found.windows[one.series][one.start_ms] == one.window
    whole = over_brokers(found)
    (orders, payments) = whole.of("messages")
    assert (orders, payments) == (MetricSeries("messages", "orders"), MetricSeries("messages", "payments"))
    assert whole.windows[orders][BEGIN_MS + 3 * W].sums == {"messages": 7, "bytes": 70}
    lag = whole.windows[MetricSeries("groups", "orders", "billing")][BEGIN_MS]
    assert (lag.last["lag_messages"], lag.last["lag_seconds"]) == (80, 0.1)
    assert set(read_metrics(place, labels={"topic": ["payments"]}).of("messages")) == {
        MetricSeries("messages", "payments", "", "broker-a")
    }
    assert read_metrics(place, since_ms=BEGIN_MS + 3 * W).span == (BEGIN_MS + 3 * W, BEGIN_MS + 4 * W)


@pytest.mark.parametrize("step", ["staged", "saved", "renamed"])
def test_a_step_is_there_wholly_or_not_at_all(tmp_path, step, monkeypatch):
    """Cut anywhere: readers see the files of saved steps, and the next load finishes what was begun."""
    place = folder_of(tmp_path / "m", 1)
    folder, before = MetricsFolder(place), len(read_metrics(place).alerts)
    saved = folder.load()
    state = MetricsState(saved, Limits(window_ms=W), (), Known())
    tables = tables_of(measured(1, "orders", "broker-a", 0), [alert(BEGIN, 1)], W)
    if step == "staged":
        monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    elif step == "saved":
        monkeypatch.setattr(MetricsFolder, "_finish", lambda *_: (_ for _ in ()).throw(OSError(5, "I/O error")))
    else:
        rename = Path.rename
        left = [2]

        def cut(path, target):
            left[0] -= path.suffix == ".part"
            if left[0] < 0:
                raise OSError(5, "I/O error")
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", cut)
    with pytest.raises(OSError, match=r"device|error"):
        folder.save(state, 1, tables)
    monkeypatch.undo()
    counts = step != "staged"
    assert len(read_metrics(place).alerts) == before + counts  # A reader needs no run that finishes it.
    found = MetricsFolder(place).load()
    assert found.batch == counts
    assert not (place / "_staging").exists()
    rows = ds.dataset(place / "metric=alerts", partitioning="hive").to_table().num_rows
    assert rows == before + counts == len(read_metrics(place).alerts)


def test_a_folder_of_other_windows_or_another_checkpoint_is_refused(tmp_path):
    """With what to do; and one without a state whose checkpoint has run."""
    saved = Saved(query="q", window_ms=W, began_ms=0)
    guard(saved, "q", W, tmp_path)
    guard(None, None, W, tmp_path)
    for why, arguments in {
        "are 60 s long, and windowSeconds is 1: give another folder": (saved, "q", 1000),
        "written by the query q, and the checkpoint in it is new or empty": (saved, None, W),
        r"belongs to another query \(r\)": (saved, "r", W),
        "the folder no state": (None, "q", W),
    }.items():
        with pytest.raises(ConfigError, match=why):
            guard(*arguments, tmp_path)
    place = folder_of(tmp_path / "m", 1)
    check_place(tmp_path / "new", W)
    with pytest.raises(ConfigError, match="are 60 s long, and windowSeconds is 5"):
        check_place(place, 5000)


def test_the_terminal_shows_tables_with_bars_and_alerts(tmp_path):
    """Of the time that was asked for; as JSON for programs; and an empty time is said."""
    place = folder_of(tmp_path / "m", 60)
    shown = run_metaq("pipeline", "show", "metrics", "--folder", str(place), "--last", "2h")
    assert shown.returncode == 0, shown.stderr
    assert "born→stored p50 ms" in shown.stdout
    assert "▁" in shown.stdout
    assert "█" in shown.stdout
    assert "begin  lag_seconds > 5 for 3  (topic=orders group=billing broker=broker-a: 12.5)" in shown.stdout
    told = json.loads(
        run_metaq(
            "pipeline", "show", "metrics", "--folder", str(place), "--topic", "payments", "--json", "--last", "2h"
        ).stdout
    )
    assert {row.get("topic", "payments") for row in told["windows"]} == {"payments"}
    row = next(row for row in told["windows"] if row["metric"] == "messages")
    assert row["messages_per_second"] == row["messages"] / 60
    nothing = run_metaq(
        "pipeline", "show", "metrics", "--folder", str(place), "--group", "x", "--topic", "x", "--broker", "x"
    )
    assert (nothing.returncode, nothing.stdout) == (3, "there are no figures of that time\n")
    wrong = run_metaq("pipeline", "show", "metrics", "--folder", str(place), "--last", "soon")
    assert (wrong.returncode, "need a number with s, m, h or d" in wrong.stderr) == (2, True)
    other = run_metaq("pipeline", "show", "metrics", "--folder", str(tmp_path))
    assert (other.returncode, "is not the folder of a metrics pipeline" in other.stderr) == (2, True)


def test_the_picture_is_a_png_with_a_panel_for_each_figure(tmp_path):
    """Also of one window, and of none at all."""
    pytest.importorskip("matplotlib")
    from metaq.pipelines.metrics.plots import PANELS, draw_metrics, short

    place = folder_of(tmp_path / "m", 60)
    for name, found in {
        "all": read_metrics(place),
        "one": read_metrics(place, since_ms=BEGIN_MS + 59 * W),
        "none": read_metrics(place, since_ms=NOW + W * 60),
    }.items():
        draw_metrics(found, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert len(PANELS) == 8
    assert [short(value) for value in (0, 950, 1234, 34_000_000)] == ["0", "950", "1.23 k", "34 M"]


def printed_by(program: str, folder: Path) -> str:
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(program, {})
    return printed.getvalue()


def test_the_programs_of_the_page_read_the_folder(tmp_path):
    """docs/metrics.md: by pyarrow alone, and by the public names; the same counts as are read back here."""
    place = folder_of(tmp_path / "metrics", 3)
    plain, by_names = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    told = {row["topic"]: row["messages_sum"] for row in ast.literal_eval(printed_by(plain, tmp_path))}
    whole = ds.dataset(place / "metric=messages", partitioning="hive").to_table().to_pylist()
    assert told == {
        topic: sum(row["messages"] for row in whole if row["topic"] == topic) for topic in ("orders", "payments")
    }
    pytest.importorskip("matplotlib")
    lines = [line.split() for line in printed_by(by_names, tmp_path).splitlines()]
    [windows] = over_brokers(read_metrics(place, labels={"topic": ["orders"]})).of("messages").values()
    assert [(topic, int(start), int(count)) for topic, start, count, *_ in lines] == [
        ("orders", start, windows[start].sums["messages"]) for start in sorted(windows)
    ]
    assert (tmp_path / "metrics.png").read_bytes().startswith(b"\x89PNG")
