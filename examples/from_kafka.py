"""Copy topics of Kafka into MetaQ while both run: python examples/from_kafka.py --kafka HOST:9092 orders payments

Needs `pip install confluent-kafka`. Runs until Ctrl-C or SIGTERM, or with --once until nothing has come for some seconds; go on by starting it again.
Any number of processes with one --group share the partitions.

Nothing is left out: Kafka's offsets are committed when MetaQ has acknowledged, so a crash copies the last messages again. A copy has an id that is made
of topic, partition and offset: both copies have the same one, and whoever knows repeats by message_id (metaq.idempotence, the archive) sees one message.
What MetaQ does not take (a header with a reserved name, a body that is too large) ends the program with the reason.

    topic       the same
    key         ordering_key, so that messages of a key go to one queue; and a key to find it by, if it has no blanks
    value       body; a null value has one byte, and the tag "tombstone"
    headers     properties
    partition, offset, timestamp    properties kafka_partition, kafka_offset, kafka_ms
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from typing import Any

import confluent_kafka

import metaq

BATCH = 500
"""Messages between two commits at Kafka."""
TOMBSTONE = b"\0"


def text_of(data: bytes) -> str:
    """Bytes as text: as UTF-8, or in hex if they are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex()


def id_of(record: Any) -> str:
    """The copy's message id: the same whenever this record is copied."""
    place = f"{record.topic()}/{record.partition()}/{record.offset()}"
    return hashlib.sha256(place.encode()).hexdigest()[:32].upper()


def message_of(record: Any) -> metaq.Message:
    """The record of Kafka as a message."""
    properties = {name: text_of(value) for name, value in record.headers() or () if value}
    properties |= {"kafka_partition": str(record.partition()), "kafka_offset": str(record.offset())}
    properties["kafka_ms"] = str(record.timestamp()[1])
    key = text_of(record.key()) if record.key() else ""
    return metaq.Message(
        record.topic(),
        record.value() or TOMBSTONE,
        tag=None if record.value() else "tombstone",
        keys=(key,) if key and key.isprintable() and " " not in key else (),
        properties=properties,
    )


def copy_batch(source: Any, producer: metaq.Producer[bytes], wait: float) -> int:
    """Copy what comes within `wait` seconds, at most BATCH messages. Returns how many. Raises MetaqError, KafkaException: commits nothing."""
    futures = []
    for record in source.consume(BATCH, wait):
        if record.error() is not None:
            raise confluent_kafka.KafkaException(record.error())
        order = text_of(record.key()) if record.key() else f"partition {record.partition()}"
        futures.append(producer.submit(message_of(record), ordering_key=order, message_id=id_of(record)))
    for future in futures:
        receipt = future.result(timeout=60)
        if receipt.status is not metaq.SendStatus.SEND_OK:
            print(f"{receipt.message_id} is stored, with {receipt.status.name}")
    if futures:
        source.commit(asynchronous=False)
    return len(futures)


def main() -> None:
    """Until it is told to stop."""
    parser = argparse.ArgumentParser(description="Copy topics of Kafka into MetaQ.")
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--kafka", required=True, help="bootstrap servers")
    parser.add_argument("--group", default="to-metaq", help="consumer group at Kafka")
    parser.add_argument("--namesrv", default=os.environ.get("NAMESRV_ADDR", "localhost:9876"))
    parser.add_argument("--once", type=float, metavar="SECONDS", help="end when nothing has come for so long")
    options = parser.parse_args()
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    signal.signal(signal.SIGINT, lambda number, _: ended.append(number))
    source = confluent_kafka.Consumer(
        {
            "bootstrap.servers": options.kafka,
            "group.id": options.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    source.subscribe(options.topics)
    copied = 0
    try:
        with metaq.Producer(options.namesrv, timeout=30, linger=0.005) as producer:
            while not ended:
                count = copy_batch(source, producer, options.once or 1.0)
                copied += count
                if options.once and not count:
                    break
    finally:
        source.close()
        print(copied, "messages copied")


if __name__ == "__main__":
    main()
