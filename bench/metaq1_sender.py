"""Sends of one producer of `metaq.metaq1`: ZOOKEEPER TOPIC MODE BODY WARM COUNT, prints messages a second from the first send to the
last answer, and the client's CPU time of each in µs.

MODE: one (each waits for its answer), threads (64 that do so), futures (64 sends of one thread under way, the oldest of which is
waited for), tasks (64 tasks of asyncio, each of which awaits its sends). A topic at `meta://host:port` needs no ZooKeeper.
"""

import asyncio
import sys
import threading
import time
from collections import deque

from metaq.metaq1 import (
    Message,
    MessageProducer,
    MetaClientConfig,
    MetaMessageSessionFactory,
    SendFuture,
    ZKConfig,
    aio,
)

OUTSTANDING = 64


def one_by_one(producer: MessageProducer, topic: str, body: bytes, count: int) -> None:
    for _ in range(count):
        producer.send_message(Message(topic, body))


def threads(producer: MessageProducer, topic: str, body: bytes, count: int) -> None:
    shares = [count // OUTSTANDING + (number < count % OUTSTANDING) for number in range(OUTSTANDING)]
    senders = [threading.Thread(target=one_by_one, args=(producer, topic, body, share)) for share in shares]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def futures(producer: MessageProducer, topic: str, body: bytes, count: int) -> None:
    under_way: deque[SendFuture] = deque()
    for _ in range(count):
        if len(under_way) == OUTSTANDING:
            under_way.popleft().result()
        under_way.append(producer.submit(Message(topic, body)))
    for future in under_way:
        future.result()


async def tasks(producer: aio.MessageProducer, topic: str, body: bytes, count: int) -> None:
    async def work(share: int) -> None:
        for _ in range(share):
            await producer.send_message(Message(topic, body))

    shares = [count // OUTSTANDING + (number < count % OUTSTANDING) for number in range(OUTSTANDING)]
    await asyncio.gather(*(work(share) for share in shares))


def tell(count: int, seconds: float, cpu: float) -> None:
    print(f"rate {count / seconds} cpu_us {cpu / count * 1e6}")


def main() -> None:
    zookeeper, topic, mode, size, warm, count = sys.argv[1:]
    body = bytes(int(size))
    if zookeeper.startswith("meta:"):
        config = MetaClientConfig(server_url=zookeeper)
    else:
        config = MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper))
    if mode == "tasks":

        async def run() -> None:
            async with aio.MetaMessageSessionFactory(config) as factory:
                producer = factory.create_producer()
                await producer.publish(topic)
                await tasks(producer, topic, body, int(warm))
                cpu, began = time.process_time(), time.perf_counter()
                await tasks(producer, topic, body, int(count))
                tell(int(count), time.perf_counter() - began, time.process_time() - cpu)

        try:
            import uvloop

            uvloop.run(run())
        except ImportError:
            asyncio.run(run())
        return
    work = {"one": one_by_one, "threads": threads, "futures": futures}[mode]
    with MetaMessageSessionFactory(config) as factory:
        producer = factory.create_producer()
        producer.publish(topic)
        work(producer, topic, body, int(warm))
        cpu, began = time.process_time(), time.perf_counter()
        work(producer, topic, body, int(count))
        tell(int(count), time.perf_counter() - began, time.process_time() - cpu)


if __name__ == "__main__":
    main()
