"""How the benchmarks' figures are made: verdicts beside peers, sums of callgrind and perf, stacks and their picture."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.support import ROOT, WHOLE_PATIENCE, environment

BENCH = ROOT / "bench"


@pytest.fixture(autouse=True)
def _bench_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


def _row(*, times_peer: bool, lower: bool):
    from row import Row

    return Row(
        "key", "work", "µs", 1.3 if lower else 0.7, 1.0, lambda bench: {}, lower_is_better=lower, times_peer=times_peer
    )


@pytest.mark.parametrize(
    ("lower", "value", "beside", "verdict"),
    [
        (True, 100.0, 100.0, "goal"),
        (True, 130.0, 100.0, "must"),
        (True, 131.0, 100.0, "below"),
        (True, 50.0, 100.0, "goal"),
        (False, 100.0, 100.0, "goal"),
        (False, 70.0, 100.0, "must"),
        (False, 69.0, 100.0, "below"),
        (False, 200.0, 100.0, "goal"),
    ],
)
def test_bounds_that_are_multiples_of_a_peers(lower, value, beside, verdict):
    """Of its time, if that is what is measured: 1.3 times as long is worse than as long."""
    import report

    found = report.summary(_row(times_peer=True, lower=lower), [{"value": value, "beside": beside}])
    assert (found["verdict"], found["ratio"]) == (verdict, value / beside)


def test_without_its_peer_nothing_is_judged():
    """And no ratio is told."""
    import report

    found = report.summary(_row(times_peer=True, lower=True), [{"value": 5.0}])
    assert found["verdict"] == "–"
    assert "ratio" not in found


def test_ratio_beside_own_bounds_is_how_many_times_better():
    """Half of the time is twice as good, and judged is the time."""
    import report

    found = report.summary(_row(times_peer=False, lower=True), [{"value": 1.2, "beside": 2.4}])
    assert (found["ratio"], found["verdict"]) == (2.0, "must")


def test_every_row_has_bounds_in_their_order():
    """A goal is not easier than what a row must reach, and no two rows have one name."""
    import rows

    keys = [row.key for row in rows.ROWS]
    assert len(keys) == len(set(keys))
    for row in rows.ROWS:
        assert row.goal <= row.must if row.lower_is_better else row.goal >= row.must, row.key


def test_numbers_of_messages():
    """As people write them."""
    import run

    assert [run.messages(text) for text in ("20000", "500k", "1M", "1.5m")] == [20_000, 500_000, 1_000_000, 1_500_000]


def test_sums_of_callgrind():
    """Of the events that a file names."""
    import cache_misses

    text = "version: 1\nevents: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nfn=(1) f\n1 5\nsummary: 100 0 0 0 6 4 1 2 3\n"
    assert cache_misses.figures(cache_misses.events(text), 10) == {"instructions": 10.0, "first": 1.0, "last": 0.6}
    assert cache_misses.events("nothing") == {}
    assert cache_misses.events("events: Ir DLmr\ntotals: 7 18446744073709551614\n") == {"Ir": 7.0, "DLmr": -2.0}


def test_counts_of_perf():
    """Those that it could count."""
    import costs

    text = "123,,instructions:u,1,100.00,,\n<not supported>,,cache-misses,0,100.00,,\n"
    assert costs._counts(text) == {"instructions": 123.0}
    spent = costs.Costs(cpu_s=2e-3, instructions=5000.0)
    assert spent.each(10) == {"cpu_us": pytest.approx(200), "instructions": 500.0}


LOOP = (
    "0x1 (libc.so.6);main (metaq/cli/main.py:16);uv_run (core.c:464);uv__io_poll (linux.c:1546);uv__read (stream.c:1)"
)
STACKS = f"""{LOOP};Stream.buffer_updated (metaq/net/stream.py:368);append (metaq/wire/hot/_native.cpython-311-x86_64-linux-gnu.so) 30
{LOOP};Stream.buffer_updated (metaq/net/stream.py:370);append (metaq/wire/hot/_native.cpython-311-x86_64-linux-gnu.so) 10
{LOOP};read (libc.so.6) 40
uv_run (core.c:464);uv__io_poll (linux.c:1452);epoll_pwait (libc.so.6) 900
Thread.run (threading.py:1);Worker._run (metaq/store/worker.py:81);Disk.sync (metaq/store/disk.py:1);fsync (libc.so.6) 20
Thread.run (threading.py:1);Worker._run (metaq/store/worker.py:76);PyThread_acquire_lock_timed (libpython3.11.so.1.0);0x2 (libc.so.6) 500
"""


def test_stacks_are_of_work():
    """Without what waits, line numbers and frames that say nothing; threads stand beside the loop."""
    import flame

    stacks = flame.folded(STACKS)
    assert stacks == Counter({
        ("event loop", "uv__read (stream.c)", "Stream.buffer_updated (metaq/net/stream.py)", "append (metaq/wire/hot/_native)"): 40,
        ("event loop", "uv__read (stream.c)", "read (libc.so.6)"): 40,
        ("other threads", "Worker._run (metaq/store/worker.py)", "Disk.sync (metaq/store/disk.py)", "fsync (libc.so.6)"): 20,
    })  # fmt: skip
    found = flame.shares(stacks)
    assert [found[name] for name in ("hot", "kernel", "beside the loop")] == pytest.approx([0.4, 0.6, 0.2])


def test_picture_of_stacks():
    """Each box is as wide as its share; what is too narrow to be seen is left out."""
    import flame

    stacks = flame.folded(STACKS)
    stacks["event loop", "rare (metaq/rare.py)"] = 0
    text = flame.svg(stacks, "a <title>", "a note")
    assert "a &lt;title&gt;" in text
    assert "<title>append (metaq/wire/hot/_native): 40.0%</title>" in text
    assert 'width="479.4"' in text  # 40 % of 1 200, less the gap
    assert "rare" not in text


@pytest.mark.slow
def test_flame_graph_is_drawn(tmp_path):
    """Of a broker that runs; where py-spy is not installed the command says so."""
    command = [sys.executable, str(BENCH / "flame.py"), "--row", "send,client-send", "--seconds", "3"]
    command += ["--output", str(tmp_path), "--disk", str(tmp_path / "disk")]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    if done.returncode == 77 or "Permission denied" in done.stderr:
        pytest.skip(f"{done.stdout}{done.stderr[-200:]}".strip())
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "send.svg").read_text()
    assert "event loop" in text
    assert "(metaq/" in text
    assert (tmp_path / "client-send.svg").exists()


@pytest.mark.all  # and not long: timers of a whole server count too, so that a busy machine has more of them than of sends
def test_cache_misses_are_counted(tmp_path):
    """A batched message takes fewer instructions than a single one."""
    command = [sys.executable, str(BENCH / "cache_misses.py"), "--row", "send,batch", "--count", "500", "--alone"]
    done = subprocess.run(
        [*command, "--disk", str(tmp_path)], env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE,
        check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    import json

    found = json.loads(done.stdout.splitlines()[-1])
    assert found["send"]["instructions"] > 2 * found["batch"]["instructions"] > 0
