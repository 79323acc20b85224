"""Messages for two partitions of one broker, which become visible together or not at all.

python examples/metaq1/local_transaction.py --zookeeper 127.0.0.1:2181

The topic needs two partitions.
"""

from collections.abc import Sequence

from options import arguments

from metaq.metaq1 import Message, MessageProducer, MetaMessageSessionFactory, Partition


def by_account(topic: str, partitions: Sequence[Partition], message: Message) -> Partition:  # noqa: ARG001
    """A selector: what is of one account stays in one partition. In a transaction it gets those of the chosen broker."""
    return partitions[message.data[-1] % len(partitions)]


def transfer(producer: MessageProducer, topic: str, amount: int) -> None:
    with producer.transaction():  # leaving it commits, leaving it by an exception rolls back
        taken = producer.send_message(Message(topic, b"%d taken from account 1" % amount))
        given = producer.send_message(Message(topic, b"%d given to account 2" % amount))
        if amount > 100:
            raise ValueError(f"account 1 has no {amount}")
    print(f"transferred {amount}: messages in partitions {taken.partition} and {given.partition}")


def main() -> None:
    config, options = arguments(__doc__)
    with MetaMessageSessionFactory(config) as factory, factory.create_producer(by_account) as producer:
        producer.publish(options.topic)
        for amount in (30, 3000, 50):
            try:
                transfer(producer, options.topic, amount)
            except ValueError as error:
                print("rolled back:", error)


if __name__ == "__main__":
    main()
