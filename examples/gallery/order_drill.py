"""Kills the order service and its mailer under load (kill -9), and shows that no order is lost and none is handled twice.

Clients order as fast as they are answered, and ask again when they are not, with the same key. Meanwhile one of the two programs is
killed every so often, at whatever it is doing, and started again. At the end each answered order must be in the service's database once,
must have one mail, and the goods must have left the stock once. The exit status is 1 if anything differs.

pip install pymetaq fastapi uvicorn sqlalchemy matplotlib
metaq up &
python examples/gallery/order_drill.py --picture orders.svg

The databases are SQLite files of a temporary folder, the topic is its own.
"""

import argparse
import collections
import contextlib
import http.client
import itertools
import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple, Self

from metaq.admin import Admin

HERE = Path(__file__).parent
PATIENCE_SECONDS = 300.0
SAMPLE_SECONDS = 0.2


class Moment(NamedTuple):
    """What there was so many seconds after the start."""

    at: float
    answered: int
    stored: int
    mailed: int


class Shop:
    """Both programs as processes over one folder. Started, killed and started again as often as one likes."""

    def __init__(self, folder: Path, namesrv: str, topic: str) -> None:
        self.folder, self.topic = folder, topic
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._environment = {
            **os.environ, "NAMESRV_ADDR": namesrv, "ORDERS_TOPIC": topic, "DATABASE": f"sqlite:///{folder / 'orders.db'}",
            "MAILER_DATABASE": f"sqlite:///{folder / 'mailer.db'}",
        }  # fmt: skip
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, **environment: str) -> None:
        """Start "service" or "mailer", with more variables than both have."""
        command = [sys.executable, str(HERE / "order_mailer.py")]
        if name == "service":
            command = [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "order_service:app", "--log-level", "warning",
                       "--port", str(self.port)]  # fmt: skip
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment | environment, cwd=self.folder
            )

    def kill(self, name: str) -> None:
        """As a power cut would end it."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def order(self, key: str, item: str, count: int, timeout: float = 30.0) -> int:
        """Order, once. Returns the order's number. Raises OSError, HTTPException: whether it was taken is not known."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            body = json.dumps({"item": item, "count": count, "email": f"{key}@example.org"})
            connection.request("POST", "/orders", body, {"content-type": "application/json", "idempotency-key": key})
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 201:
            raise http.client.HTTPException(f"{answer.status} {text[:200]!r}")
        return int(json.loads(text)["number"])

    def rows(self, database: str, query: str) -> list[tuple[Any, ...]]:
        """Rows of `orders.db` or `mailer.db`; none while there is no such table."""
        with contextlib.closing(sqlite3.connect(self.folder / database, timeout=30)) as opened:
            try:
                return opened.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self.kill(name)


class Clients:
    """Threads that order until they are stopped. `answered` has the number that each key was told."""

    def __init__(self, shop: Shop, seed: int, number: int, pause: float) -> None:
        self.answered: dict[str, int] = {}
        self.repeated = 0
        self._shop, self._pause, self._stop = shop, pause, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(seed + one),)) for one in range(number)]
        for thread in self._threads:
            thread.start()

    def _run(self, chance: random.Random) -> None:
        while not self._stop.wait(self._pause):
            key, item, count = uuid.uuid4().hex, chance.choice(("lamp", "chair", "desk")), chance.randint(1, 3)
            for tries in itertools.count():
                try:
                    self.answered[key] = self._shop.order(key, item, count)
                    self.repeated += bool(tries)
                    break
                except (OSError, http.client.HTTPException):
                    time.sleep(0.1)

    def stop(self) -> None:
        """Return when each has its answer."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def verdicts(shop: Shop, answered: dict[str, int], stock: dict[str, int]) -> dict[str, bool]:
    """What must hold → whether it does."""
    orders = shop.rows("orders.db", "SELECT key, number, item, count FROM orders")
    mails = shop.rows("mailer.db", 'SELECT "order", text FROM mails')
    sold = collections.Counter(
        {item: sum(int(text.split()[0]) for _, text in mails if text.endswith(f"{item} is on its way")) for item in stock}
    )  # fmt: skip
    left = dict(shop.rows("mailer.db", 'SELECT item, "left" FROM stock'))
    return {
        f"{len(answered)} answered orders are stored, each once": {key: number for key, number, *_ in orders} == answered,
        f"{len(mails)} mails, one for each order": sorted(order for order, _ in mails) == sorted(answered.values()),
        f"{sold.total()} goods left the stock, those of the mails": left == {item: stock[item] - sold[item] for item in stock},
    }  # fmt: skip


def run(namesrv: str, folder: Path, *, seconds: float, kills: int, seed: int, clients: int = 4, pause: float = 0.02) -> tuple[list[Moment], list[tuple[float, str]], dict[str, bool]]:  # fmt: skip
    """The whole drill, in an empty folder. Returns what there was when, the kills, and the verdicts."""
    topic, chance = f"orders-drill-{uuid.uuid4().hex[:8]}", random.Random(seed)
    moments: list[Moment] = []
    killed: list[tuple[float, str]] = []
    with Admin(namesrv) as admin, Shop(folder, namesrv, topic) as shop:
        admin.create_topic(topic, queues=4)
        begun = time.monotonic()

        def look() -> Moment:
            mails = shop.rows("mailer.db", "SELECT count(*) FROM mails")
            moments.append(
                Moment(time.monotonic() - begun, len(load.answered), admin.describe_topic(topic).messages, mails[0][0] if mails else 0)
            )  # fmt: skip
            return moments[-1]

        shop.start("service")
        shop.start("mailer")
        load = Clients(shop, seed, clients, pause)
        try:
            while not load.answered and time.monotonic() - begun < PATIENCE_SECONDS:
                time.sleep(0.05)
            begun = time.monotonic()
            due = sorted(seconds * (one + chance.uniform(0.2, 0.8)) / kills for one in range(kills))
            victims = chance.sample(["service", "mailer"] * kills, kills)
            while (now := look().at) < seconds:
                if len(killed) < kills and now >= due[len(killed)]:
                    victim = victims[len(killed)]
                    shop.kill(victim)
                    killed.append((time.monotonic() - begun, victim))
                    shop.start(victim)
                time.sleep(SAMPLE_SECONDS)
        finally:
            load.stop()
        end = time.monotonic() + PATIENCE_SECONDS
        while look().mailed < len(load.answered) or shop.rows("orders.db", "SELECT 1 FROM metaq_outbox"):
            if time.monotonic() > end:
                break
            time.sleep(SAMPLE_SECONDS)
        from order_mailer import STOCK

        found = verdicts(shop, load.answered, STOCK)
        again = moments[-1].stored - len(load.answered)
        print(f"{len(killed)} kills; {load.repeated} orders were asked for again, {again} messages were sent again")
    with Admin(namesrv) as admin:
        admin.delete_topic(topic, force=True)
    return moments, killed, found


def draw(path: Path, moments: list[Moment], killed: list[tuple[float, str]]) -> None:
    """Orders, messages and mails over time, and the kills."""
    from picture import BLUE, COLOURS, RED, mark, picture

    title = f"{moments[-1].answered} orders, {len(killed)} times kill -9, {moments[-1].mailed} mails"
    with picture(path, title, "how many until then") as (axes,):
        at = [one.at for one in moments]
        for values, name, colour, width in (
            ([one.answered for one in moments], "orders answered", BLUE, 4.5),
            ([one.stored for one in moments], "messages in the topic", COLOURS[1], 2.5),
            ([one.mailed for one in moments], "mails written", COLOURS[2], 1.3),
        ):
            axes.plot(at, values, label=name, color=colour, linewidth=width)
        mark(axes, [(at, f"{name} killed") for at, name in killed], RED)
        axes.set_xlabel("seconds")
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right")


def main() -> int:
    arguments = argparse.ArgumentParser(description="Kill the order service and its mailer under load, and compare.")
    arguments.add_argument("--namesrv", default=os.environ.get("NAMESRV_ADDR", "localhost:9876"))
    arguments.add_argument("--seconds", type=float, default=30.0, help="how long clients order")
    arguments.add_argument("--kills", type=int, default=6)
    arguments.add_argument("--seed", type=int, default=1, help="decides what is ordered, and who is killed when")
    arguments.add_argument(
        "--folder", type=Path, help="an empty folder for databases and logs; by default a temporary one"
    )
    arguments.add_argument("--picture", type=Path, help="draw it into this SVG file")
    given = arguments.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="orders-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        arguments.error(f"{folder} is not empty")
    moments, killed, found = run(given.namesrv, folder, seconds=given.seconds, kills=given.kills, seed=given.seed)
    for what, good in found.items():
        print(f"{'as it must be' if good else 'WRONG':13}  {what}")
    if given.picture:
        draw(given.picture, moments, killed)
    if not all(found.values()):
        print(f"databases and logs are in {folder}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
