"""Send messages one after the other. Each send returns when the server has stored its message.

python examples/metaq1/send.py --zookeeper 127.0.0.1:2181
python examples/metaq1/send.py --server meta://127.0.0.1:8123 --topic test --count 3
"""

from options import arguments

from metaq.errors import MetaqError
from metaq.metaq1 import Message, MetaMessageSessionFactory


def main() -> None:
    config, options = arguments(__doc__)
    # One factory is enough for a program: its producers and consumers share one connection to each server.
    with MetaMessageSessionFactory(config) as factory, factory.create_producer() as producer:
        producer.publish(options.topic)
        for number in range(options.count):
            message = Message(options.topic, b"message %d" % number, attribute="even" if number % 2 == 0 else "odd")
            try:
                result = producer.send_message(message, timeout=10.0)
            except MetaqError as error:  # what is refused, or not answered in time, raises
                print(f"message {number} is not sent: {error}")
            else:
                print(f"message {number}: partition {result.partition}, offset {result.offset}")


if __name__ == "__main__":
    main()
