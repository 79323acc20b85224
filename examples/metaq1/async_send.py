"""Send without waiting for each message: the outcome is in a future, or comes to a callback.

python examples/metaq1/async_send.py --zookeeper 127.0.0.1:2181
"""

import threading
from concurrent.futures import Future

from options import arguments, say

from metaq.metaq1 import Message, MetaMessageSessionFactory, SendResult


def main() -> None:
    config, options = arguments(__doc__)
    with MetaMessageSessionFactory(config) as factory, factory.create_producer() as producer:
        producer.publish(options.topic)

        # Futures: all messages are under way at once, and the program waits where it wants to know.
        futures = [
            producer.submit(Message(options.topic, b"future %d" % n), timeout=10.0) for n in range(options.count)
        ]
        stored = [future.result() for future in futures]
        print(f"{len(stored)} messages are stored, in {len({one.partition for one in stored})} partitions")

        # A callback is called in a thread of the factory, with the future that is done.
        told = threading.Semaphore(0)

        def tell(done: Future[SendResult]) -> None:
            error = done.exception()
            say(f"failed: {error}" if error else f"stored in partition {done.result().partition}")
            told.release()

        for number in range(options.count):
            future = producer.submit(Message(options.topic, b"callback %d" % number), timeout=10.0)
            future.add_done_callback(tell)
        for _ in range(options.count):
            told.acquire()


if __name__ == "__main__":
    main()
