"""Consume in batches: a listener acknowledges several messages at once, or has all of them delivered again.

python examples/metaq1/batch_transactions.py --zookeeper 127.0.0.1:2181

Each batch is written as one, as a database would; the first write fails. It ends after --count messages, or by Ctrl-C.
"""

import contextlib
import threading
from collections import defaultdict

from options import arguments, say

from metaq.metaq1 import ConsumerConfig, MetaMessageSessionFactory, Partition, ReceivedMessage

SIZE = 5


def main() -> None:
    config, options = arguments(__doc__, group="example-batches")
    batches: defaultdict[Partition, list[bytes]] = defaultdict(list)
    written: list[bytes] = []
    enough = threading.Event()
    failures = iter([True])

    def receive(message: ReceivedMessage) -> None:
        batch = batches[message.partition]
        batch.append(message.data)
        if len(batch) < SIZE:
            return  # neither: more messages of this partition come, and the offset is not saved
        if next(failures, False):
            say(f"writing {len(batch)} messages of partition {message.partition} fails: rollback")
            message.rollback()  # back to the last acknowledged message of the partition
        else:
            written.extend(batch)
            say(f"{len(batch)} messages of partition {message.partition} are written: ack")
            message.ack()  # this message and all before it
        batch.clear()
        if len(written) >= options.count:
            enough.set()

    with MetaMessageSessionFactory(config) as factory:
        # One thread for all partitions, so that they may share `written`.
        settings = ConsumerConfig(options.group, fetch_runner_count=1, max_delay_fetch_time=1.0)
        consumer = factory.create_consumer(settings)
        consumer.subscribe(options.topic, listener=receive, auto_ack=False)
        with contextlib.suppress(KeyboardInterrupt):
            consumer.complete_subscribe()
            enough.wait()
    print(f"{len(written)} messages are written")


if __name__ == "__main__":
    main()
