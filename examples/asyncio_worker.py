"""The same names in asyncio: a producer and a consumer in one event loop, ten messages in hand at a time.

metaq up &
python examples/asyncio_worker.py
"""

import asyncio
import os

from metaq import aio

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
COUNT = 50


async def main() -> None:
    async with aio.Producer(NAMESRV) as producer:
        await asyncio.gather(*(producer.send("thumbnails", f"image-{n}".encode()) for n in range(COUNT)))

    done = 0
    slots = asyncio.Semaphore(10)
    async with aio.Consumer(NAMESRV, group="thumbnailer", topics="thumbnails", start="first") as consumer:
        everything = asyncio.Event()

        async def work(message: object) -> None:
            nonlocal done
            async with slots, message:
                await asyncio.sleep(0.01)  # as if it were work
                done += 1
                if done == COUNT:
                    everything.set()

        async with asyncio.TaskGroup() as tasks:

            async def receive() -> None:
                async for message in consumer:
                    tasks.create_task(work(message))

            receiver = tasks.create_task(receive())
            await everything.wait()
            receiver.cancel()
    print(f"{done} images done")


if __name__ == "__main__":
    asyncio.run(main())
