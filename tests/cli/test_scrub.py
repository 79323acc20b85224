"""`metaq broker scrub`: what differs between a master's log and its slave's is told with file and offset, and repaired."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import pytest

import metaq
from metaq import aio
from metaq.broker.replication.ranges import Reading
from metaq.clock import seeded
from metaq.model.scrub import DamagedSide
from tests.app.test_pair_scrub import BODY_AT, ScrubbedPair, pair
from tests.app.test_promotion import FILE, opened
from tests.store.log.test_raw import raw_log
from tests.support import PATIENCE, environment, metaq_command, run_metaq

pytestmark = pytest.mark.slow


async def cli(one: ScrubbedPair, *args: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run_metaq, "broker", "scrub", *args, "-n", one.namesrv.address)


def test_equal_logs_are_told_as_the_same(tmp_path):
    """By the broker's name, and by the address of either side."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            for name in ("pair", one.running["a"].address, one.running["b"].address):
                done = await cli(one, name)
                assert done.returncode == 0, done.stderr
                assert f"the same from log offset 0 to {one.end}" in done.stdout
                assert f"{one.end:,} of {one.end:,} B compared, 0 places differ" in done.stderr

    asyncio.run(body())


def test_what_differs_is_told_and_repaired(tmp_path):
    """At both sides, in text and in JSON; what cannot be repaired is left, and the exit code says so."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            records = one.records()
            one.flip("a", records[10][0] + BODY_AT)
            one.flip("b", records[20][0] + 5)
            one.flip("b", records[30][0] + 60)
            told = await cli(one, "pair")
            assert told.returncode == 1
            for name, number in (("a", 10), ("b", 20), ("b", 30)):
                assert str(one.file(name, records[number][0])) in told.stdout
                assert f" {records[number][0]} " in told.stdout
            assert "3 places differ" in told.stdout
            assert "`metaq broker scrub pair --repair`" in told.stdout
            (found,) = json.loads((await cli(one, "pair", "--json")).stdout)
            assert [each["damaged"] for each in found["differences"]] == ["master", "slave", "unknown"]
            repaired = await cli(one, "pair", "--repair")
            assert repaired.returncode == 1
            assert "2 were repaired" in repaired.stdout
            one.flip("b", records[30][0] + 60)
            assert (await cli(one, "pair", "--rate", "100")).returncode == 0
            await one.same()

    asyncio.run(body())


def test_a_program_has_the_same(tmp_path):
    """`Admin.scrub`, typed, with progress."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            start, size = one.records()[20]
            one.flip("b", start + BODY_AT)
            seen = []

            def run() -> None:
                with metaq.admin.Admin(one.namesrv.address) as admin:
                    (done,) = admin.scrub("pair", progress=seen.append)
                    assert [(each.log_offset, each.size, each.damaged) for each in done.differences] == [
                        (start, size, DamagedSide.SLAVE)
                    ]
                    assert (done.left, done.start, done.stop) == (1, 0, one.end)
                    (done,) = admin.scrub("pair", repair=True)
                    assert (done.left, done.repaired, done.failed) == (0, done.differences, ())

            await asyncio.to_thread(run)
            assert (seen[-1].place, seen[-1].found) == (one.end, 1)
            await one.same()

    asyncio.run(body())


def test_nothing_to_compare_is_told(tmp_path):
    """An unknown name, and a master without a slave: exit code 3."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            unknown = await cli(one, "nobody")
            assert (unknown.returncode, "no broker nobody is registered" in unknown.stderr) == (3, True)
            await one.stop("b")
            alone = await cli(one, "pair")
            assert alone.returncode == 3
            assert "has no master and slave that answer" in alone.stderr

    asyncio.run(body())


def test_a_repair_that_is_refused_is_told(tmp_path):
    """With the broker's reason; the others go on."""

    async def body() -> None:
        async with pair(tmp_path) as one:
            records = one.records()
            one.flip("a", records[10][0] + BODY_AT)
            one.flip("b", records[20][0] + BODY_AT)
            one.broker("a").repair_requests.by(None)
            done = await cli(one, "pair", "--repair")
            assert done.returncode == 1
            assert f"log offset {records[10][0]} could not be repaired: " in done.stdout
            assert "is not started yet, or is stopping" in done.stdout
            assert "1 were repaired" in done.stdout

    asyncio.run(body())


@pytest.mark.skipif(sys.platform != "linux", reason="signals as Linux has them")
def test_an_interrupt_ends_it_and_tells_what_was_found(tmp_path):
    """Ctrl-C, while a broker reads."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            one = ScrubbedPair(tmp_path, brokers)
            async with aio.Producer(one.namesrv.address) as producer:
                for number in range(3):
                    await producer.send("orders", seeded(number).randbytes(700_000))
            await one.settle()
            one.flip("b", 200_000)
            ranges, reached = one.broker("a").log_ranges, asyncio.Event()
            checksums = ranges.checksums

            def stuck(start: int, stop: int) -> Reading:
                if start < FILE:
                    return checksums(start, stop)
                reached.set()
                return Reading()

            ranges.checksums = stuck
            process = await asyncio.create_subprocess_exec(
                *metaq_command("broker", "scrub", "pair", "-n", one.namesrv.address),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
            )  # fmt: skip
            async with asyncio.timeout(PATIENCE):
                await reached.wait()
                process.send_signal(signal.SIGINT)
                out, err = await process.communicate()
            assert process.returncode == 130
            assert f"interrupted, compared up to log offset {FILE} of {one.end}" in err.decode()
            assert str(one.file("b", 0)) in out.decode()
            one.flip("b", 200_000)
            assert raw_log(tmp_path / "a", 0, one.end) == raw_log(tmp_path / "b", 0, one.end)

    asyncio.run(body())
