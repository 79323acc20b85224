"""Consume a topic as a member of a group: its members share the partitions, and each message is for one of them.

python examples/metaq1/consume.py --zookeeper 127.0.0.1:2181 --group billing

Start it twice to see the partitions shared. It ends after --count messages, or by Ctrl-C.
"""

import contextlib
import threading

from options import arguments, say

from metaq.metaq1 import ConsumerConfig, MetaMessageSessionFactory, ReceivedMessage


def main() -> None:
    config, options = arguments(__doc__, group="example-consume")
    left, enough = threading.Semaphore(options.count - 1), threading.Event()

    def receive(message: ReceivedMessage) -> None:
        """Called by several threads, but never by two for one partition. An error would have the message delivered again."""
        say(f"{message.partition} at {message.offset}: {message.data.decode()} ({message.attribute})")
        if not left.acquire(blocking=False):
            enough.set()

    def is_wanted(group: str, message: ReceivedMessage) -> bool:  # noqa: ARG001
        return not message.data.startswith(b"debug")  # what is filtered out counts as consumed

    with MetaMessageSessionFactory(config) as factory:
        consumer = factory.create_consumer(ConsumerConfig(options.group, max_delay_fetch_time=1.0))
        consumer.subscribe(options.topic, 1024 * 1024, receive, message_filter=is_wanted)
        say(f"group {options.group} consumes; Ctrl-C ends")
        with contextlib.suppress(KeyboardInterrupt):
            consumer.complete_subscribe()
            enough.wait()
    print("stopped: offsets are saved, and the partitions are given back")


if __name__ == "__main__":
    main()
