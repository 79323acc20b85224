"""Pull messages by hand: ask for a partition from an offset on, and iterate over what comes. No group, no listener.

python examples/metaq1/pull.py --zookeeper 127.0.0.1:2181

The program keeps the offsets itself, byte positions. It reads each partition once, from its begin to its end.
"""

from options import arguments

from metaq.metaq1 import ConsumerConfig, MetaMessageSessionFactory


def main() -> None:
    config, options = arguments(__doc__, group="example-pull")
    with (
        MetaMessageSessionFactory(config) as factory,
        factory.create_consumer(ConsumerConfig(options.group)) as consumer,
    ):
        for partition in factory.get_partitions(options.topic):
            offset = messages = 0
            size = 64 * 1024
            while (block := consumer.get(options.topic, partition, offset, size)) is not None:
                for message in block:
                    messages += 1
                    print(f"{partition} at {message.offset}: {message.data.decode()}")
                if not block.offset:
                    size *= 2  # not even one message fits
                offset += block.offset  # bytes of the messages that were taken
            print(f"partition {partition}: {messages} messages, the next one will be at {offset}")


if __name__ == "__main__":
    main()
