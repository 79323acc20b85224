"""Partitions of a running broker, through its MetaQ 1.x server."""

from __future__ import annotations

from pathlib import Path

from tests.interop.metaq1 import OurServer, TextConnection

PARTITIONS, CONNECTIONS, PUTS = 40, 4, 100
FRAME = 25
"""Bytes of each message's."""


def test_puts_to_any_partition_of_an_untouched_topic_are_answered_and_stay_where_they_were_told_to_be(
    tmp_path: Path,
) -> None:
    """Each first touch of a partition waits for its base on the disk and for its files; the puts behind it wait too."""
    with OurServer(tmp_path, None, {"test": {"numPartitions": PARTITIONS}}) as server:
        connections = [TextConnection(server.text) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.write(b"".join(b"put test -1 5 0 %d\r\nhello" % number for number in range(PUTS)))
        told: dict[tuple[int, int], int] = {}
        for connection in connections:
            for number in range(PUTS):
                answer = connection.read()
                assert answer is not None
                assert (answer.code, answer.opaque) == (200, number), answer
                message_id, partition, position = map(int, answer.text.split())
                told[partition, position] = message_id
            connection.close()
        assert len(told) == len(set(told.values())) == CONNECTIONS * PUTS
        server.stop()
        server.start()
        with TextConnection(server.text) as connection:
            found: dict[tuple[int, int], int] = {}
            for partition in {place[0] for place in told}:
                answer = connection.ask(f"get test g {partition} 0 1048576 1")
                assert answer is not None
                assert answer.code is None
                for position in range(0, len(answer.body), FRAME):
                    found[partition, position] = int.from_bytes(answer.body[position + 8 : position + 16], "big")
            assert found == told
