"""Two executors of their own, on `local-cluster[2,1,1024]`: whoever is killed -9, and when, each row is there once."""

from __future__ import annotations

import pytest

from tests.spark.standalone.held import AFTER_WRITE, IN_READ, IN_WRITE
from tests.spark.standalone.servers import descendants, kill, kill_executor

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]


def copy(copies, driver, source=None, sink=None):
    """Begin the copy of a topic, killed where `source` or `sink` stops."""
    driver.begin(
        "copy",
        source=copies.source(**(source or {})),
        sink=copies.sink(**(sink or {})),
        form="metaq-held",
        checkpoint=str(copies.folder / "checkpoint"),
    )


def test_tasks_run_in_the_executors(local_cluster, copies):
    """Found by its name there, too: nothing is registered for `metaq` itself."""
    copies.fill()
    plain = {name: text for name, text in copies.source().items() if name != "held"}
    copies.check_rows(local_cluster.run("read", form="metaq", **plain))
    copies.check_rows(local_cluster.run("read", form="metaq-held", **copies.source(maxOffsetsPerPartition="100")))
    executors = {task["java"] for task in copies.tasks()}
    assert len(executors) == 2
    assert executors <= set(descendants(local_cluster.running.pid))


def test_a_batch_read_whose_executor_is_killed_reads_each_message_once(local_cluster, copies):
    copies.fill()
    local_cluster.begin("read", form="metaq-held", **copies.source(hold=IN_READ))
    kill_executor(copies.held_task()["java"])
    copies.check_rows(local_cluster.result())
    assert {task["attempt"] for task in copies.tasks()} == {0, 1}


def test_a_batch_write_whose_executor_is_killed_writes_each_row_once(local_cluster, copies):
    rows = 2000
    local_cluster.begin("write", form="metaq-held", rows=rows, tasks=4, **copies.sink(hold=IN_WRITE))
    kill_executor(copies.held_task()["java"])
    local_cluster.result()
    messages = copies.read(copies.target)
    assert sorted(message.body for message in messages) == [b"%06d" % number for number in range(rows)]
    for queue in {message.queue for message in messages}:
        mine = [int(message.body) for message in messages if message.queue == queue]
        for task in range(4):
            of_task = [number for number in mine if number // (rows // 4) == task]
            assert of_task == sorted(of_task)


@pytest.mark.parametrize(("point", "victim"), [(IN_READ, "executor"), (IN_WRITE, "python"), (AFTER_WRITE, "executor")])
def test_a_copy_whose_task_is_killed_copies_each_message_once(local_cluster, copies, point, victim):
    """The executor with all that it runs, or only the Python that reads or writes; the rest of the query goes on."""
    copies.fill()
    of = "source" if point == IN_READ else "sink"
    copy(copies, local_cluster, **{of: {"hold": point}})
    held = copies.held_task()
    if victim == "executor":
        kill_executor(held["java"])
    else:
        kill(held["pid"])
    local_cluster.result()
    copies.check_copies()


def test_without_transactions_a_killed_task_repeats_and_loses_nothing(local_cluster, copies):
    """`delivery=at-least-once`."""
    copies.fill()
    copy(copies, local_cluster, sink={"hold": IN_WRITE, "delivery": "at-least-once"})
    kill_executor(copies.held_task()["java"])
    local_cluster.result()
    copies.check_copies(repeats=True)
