"""Consume a topic on every machine: each machine gets all messages, as for a cache that all of them have.

python examples/metaq1/broadcast.py --zookeeper 127.0.0.1:2181

The group's name gets the machine's address, and offsets are in a file, ~/.meta_offsets. Consumers of one machine share the
partitions. It ends after --count messages, or by Ctrl-C.
"""

import contextlib
import threading

from options import arguments, say

from metaq.metaq1 import ConsumerConfig, MetaBroadcastMessageSessionFactory, ReceivedMessage


def main() -> None:
    config, options = arguments(__doc__, group="example-broadcast")
    cache: dict[bytes, int] = {}
    enough = threading.Event()

    def receive(message: ReceivedMessage) -> None:
        cache[message.data] = message.message_id
        if len(cache) >= options.count:
            enough.set()

    with MetaBroadcastMessageSessionFactory(config) as factory:
        consumer = factory.create_broadcast_consumer(ConsumerConfig(options.group, max_delay_fetch_time=1.0))
        consumer.subscribe(options.topic, listener=receive)
        say(f"group {consumer.group} gets all partitions on this machine; Ctrl-C ends")
        with contextlib.suppress(KeyboardInterrupt):
            consumer.complete_subscribe()
            enough.wait()
    print(f"the cache of this machine has {len(cache)} entries")


if __name__ == "__main__":
    main()
