"""A master and two workers from the pip package: attempts beside each other, and workers that are killed -9."""

from __future__ import annotations

import pytest

from tests.spark.standalone.held import AFTER_WRITE, GO, IN_READ
from tests.spark.standalone.servers import HOSTS, driver
from tests.support import WHOLE_PATIENCE, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
    "spark.executor.cores": "2",
    "spark.cores.max": "4",
}


@pytest.fixture(scope="module")
def speculating(standalone, tmp_path_factory):
    """A driver with an executor on each host, where a task that is slow gets a second attempt."""
    with driver(standalone.url, tmp_path_factory.mktemp("speculating"), SPECULATION) as running:
        yield running


def test_a_read_with_two_attempts_beside_each_other_reads_each_message_once(speculating, copies):
    copies.fill()
    speculating.begin("read", form="metaq-held", **copies.source(hold=IN_READ))
    copies.check_rows(speculating.result())
    held, tasks = copies.held_task(), copies.tasks()
    others = [task for task in tasks if task["partition"] == held["partition"] and task["attempt"] == 1]
    assert [task["java"] == held["java"] for task in others] == [False]


def test_a_copy_with_two_attempts_beside_each_other_copies_each_message_once(speculating, copies):
    """The first has staged all its rows and hangs; the second does so again, and its rows count."""
    copies.fill()
    speculating.begin(
        "copy",
        source=copies.source(),
        sink=copies.sink(hold=AFTER_WRITE),
        form="metaq-held",
        checkpoint=str(copies.folder / "checkpoint"),
    )
    held = copies.held_task()
    speculating.result()
    (copies.held / GO).touch()
    copies.check_copies()
    same = [task for task in copies.tasks(f"task-*-{AFTER_WRITE}") if task["partition"] == held["partition"]]
    assert sorted(task["attempt"] for task in same) == [0, 1]


def test_a_copy_whose_workers_are_killed_one_after_the_other_goes_on(standalone, speculating, copies):
    """Each time a host with all that runs there; the second time, that is every executor."""
    copies.fill(2000)
    checkpoint = copies.folder / "checkpoint"
    speculating.begin(
        "copy",
        source=copies.source(maxOffsetsPerTrigger="200"),
        sink=copies.sink(),
        form="metaq-held",
        checkpoint=str(checkpoint),
    )
    for host, done in zip(HOSTS, (2, 5), strict=True):
        commit = checkpoint / "commits" / str(done)
        eventually(commit.exists, WHOLE_PATIENCE, what=f"batch {done}")
        standalone.kill(host)
        standalone.start(host)
    assert speculating.result() >= 10
    copies.check_copies()
