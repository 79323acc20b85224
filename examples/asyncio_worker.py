"""The same names in asyncio: a producer and a consumer in one event loop, ten messages in hand at a time.

SIGTERM ends it cleanly: what is in hand is finished, the progress kept.

metaq up &
python examples/asyncio_worker.py
"""

import asyncio
import os
import signal

from metaq import aio

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
COUNT = 50


async def main() -> None:
    async with aio.Producer(NAMESRV) as producer:
        await asyncio.gather(*(producer.send("thumbnails", f"image-{n}".encode()) for n in range(COUNT)))

    done: set[bytes] = set()
    async with aio.Consumer(NAMESRV, group="thumbnailer", topics="thumbnails", start="earliest") as consumer:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)

        async def work(message: aio.ReceivedMessage) -> None:
            await asyncio.sleep(0.01)  # as if it were work
            done.add(message.body)
            if len(done) == COUNT:
                consumer.stop()

        await consumer.run(work, tasks=10)
    print(f"{len(done)} images done")


if __name__ == "__main__":
    asyncio.run(main())
