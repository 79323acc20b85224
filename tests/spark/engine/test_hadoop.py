"""What Java's faults become. The verbs themselves are tested on a real HDFS: tests/pipelines/archive/test_service_hdfs.py."""

from __future__ import annotations

import errno

import pytest
from py4j.protocol import Py4JNetworkError

from metaq.spark.engine import hadoop

TASK_FAILED = """[TASK_WRITE_FAILED] Task failed while writing rows to hdfs://host/out.
Caused by: org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /out is exceeded: quota = 1 B
\tat org.apache.hadoop.hdfs.server.namenode.DirectoryWithQuotaFeature.verify(DirectoryWithQuotaFeature.java:1)
Caused by: org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.hdfs.protocol.DSQuotaExceededException): The DiskSpace
"""


@pytest.mark.parametrize(
    ("text", "number", "said"),
    [
        (TASK_FAILED, errno.EDQUOT, "The DiskSpace"),
        (
            "x\nCaused by: org.apache.hadoop.security.AccessControlException: Permission denied: user=me",
            errno.EACCES,
            "Perm",
        ),
        ("Caused by: java.net.ConnectException: Connection refused", errno.ECONNREFUSED, "Connection refused"),
        ("Caused by: java.net.ConnectException", errno.ECONNREFUSED, "ConnectException"),
    ],
    ids=["quota", "access", "connection", "no text"],
)
def test_what_a_task_failed_with_is_found_in_its_text(text, number, said):
    found = hadoop.fault_of(RuntimeError(text))
    assert found is not None
    assert found.errno == number
    assert found.strerror.startswith(said)


@pytest.mark.parametrize("text", ["", "metaq.errors.MessagesLost: 3 messages", "java.lang.IllegalStateException: no"])
def test_other_faults_are_not_of_the_file_system(text):
    assert hadoop.fault_of(RuntimeError(text)) is None


def test_a_jvm_that_has_ended_is_a_fault_of_the_file_system():
    """Not one of the program: whoever tidies up goes on with that."""
    with (
        pytest.raises(OSError, match="the JVM of Spark's driver has ended") as caught,
        hadoop._faults("hdfs://h/out", "_lease"),
    ):
        raise Py4JNetworkError("Answer from Java side is empty")
    assert caught.value.errno == errno.ECONNRESET
