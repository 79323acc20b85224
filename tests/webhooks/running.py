"""A webhook in a thread, as a program would run it, and what tests ask of its group."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import metaq
from metaq.admin import Admin
from metaq.admin.groups import GroupNotFound
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX
from metaq.webhooks.options import of_mapping
from metaq.webhooks.webhook import Webhook
from tests.support import PATIENCE, eventually


class Running:
    """`error`: what `run` raised, after `ended`."""

    def __init__(self, namesrv: str, name: str, options: dict) -> None:
        self._made, self.ended = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.webhook: Webhook
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(namesrv, name, options)), daemon=True)
        self._thread.start()
        assert self._made.wait(PATIENCE)

    async def _main(self, namesrv: str, name: str, options: dict) -> None:
        self._loop = asyncio.get_running_loop()
        async with Webhook(of_mapping(name, options), namesrv) as self.webhook:
            self._made.set()
            try:
                await self.webhook.run()
            except BaseException as error:
                self.error = error
        self.ended.set()

    @property
    def figures(self):
        self.webhook._told()
        return self.webhook.figures

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self.webhook.stop)
        assert self.ended.wait(PATIENCE)
        self._thread.join(PATIENCE)


@contextlib.contextmanager
def running(namesrv: str, name: str, url: str, **options) -> Iterator[Running]:
    """A webhook that pauses for moments only, in a network of this machine, from the start of its topic."""
    usual = {
        "topics": name, "allowNetworks": "127.0.0.0/8", "start": "earliest", "timeoutSeconds": 60, "pauseLeastSeconds": 0.05,
        "pauseMostSeconds": 0.1,
    }  # fmt: skip
    one = Running(namesrv, name, {**usual, "url": url, **options})
    try:
        yield one
    finally:
        one.stop()


class Group:
    """A topic and the group of the same name."""

    def __init__(self, namesrv: str, name: str, queues: int = 4) -> None:
        self.namesrv, self.name, self.sent = namesrv, name, 0
        with Admin(namesrv) as admin:
            admin.create_topic(name, queues=queues)

    def send(self, *bodies: bytes, **more) -> None:
        with metaq.Producer(self.namesrv) as producer:
            for body in bodies:
                producer.send(self.name, body, **more)
                self.sent += 1

    def lag(self) -> int:
        """Messages that were sent and that the group's progress is not behind yet. Those of retries are not among them."""
        return self.sent - sum(one.consumed for one in self._progress() if one.queue.topic == self.name)

    def consumed(self) -> None:
        """Wait until the group's progress at the brokers is behind everything, retries too."""
        eventually(lambda: self.lag() == 0, what=f"the progress of {self.name}")
        eventually(lambda: all(one.lag == 0 for one in self._progress()), what=f"the retries of {self.name}")

    def _progress(self):
        with Admin(self.namesrv) as admin:
            try:
                return admin.group_progress(self.name).queues
            except GroupNotFound:
                return ()

    def stored(self, prefix: str) -> list[bytes]:
        """Bodies of the group's topic of retries, or of dead letters."""
        topic = prefix + self.name
        with Admin(self.namesrv) as admin:
            if topic not in admin.list_topics(system=True):
                return []
        with metaq.Reader(self.namesrv, topic, start="earliest", stop_at_end=True) as reader:
            return [message.body for message in reader]

    @property
    def retries(self) -> list[bytes]:
        return self.stored(RETRY_PREFIX)

    @property
    def dead(self) -> list[bytes]:
        return self.stored(DEAD_LETTER_PREFIX)
