"""Send one way: sends return at once, and what cannot be sent now waits in files and is sent later.

python examples/metaq1/one_way.py --zookeeper 127.0.0.1:2181

For much that matters little, such as logs. The files are in ~/.meta_async_storage (`async_storage_path`), of one process at a time.
"""

from options import arguments

from metaq.metaq1 import AsyncMetaMessageSessionFactory, Message


def main() -> None:
    config, options = arguments(__doc__, count=1000)
    with AsyncMetaMessageSessionFactory(config) as factory:
        with factory.create_async_producer() as producer:
            producer.publish(options.topic)
            for number in range(options.count):
                result = producer.send_message(Message(options.topic, b"line %d" % number), timeout=10.0)
            # Nobody knows yet what became of them: the result has the chosen partition and no offset.
            print(f"{options.count} messages are handed over; the last one is for partition {result.partition}")
        # The end waits for what is under way. `ignored` were not taken by a server, and are kept in files.
        factory.shutdown()
        print(f"{producer.ignored} wait in files, {producer.dropped} are lost")


if __name__ == "__main__":
    main()
