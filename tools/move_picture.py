"""Draw examples/gallery/move_from_rocketmq.svg: its program moves a RocketMQ 4.9.7 under load. `python -m tools.move_picture FILE`.

Needs Java and Maven, as the tests in tests/interop do.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.interop.servers import MetaqServer, RocketmqServer, mqadmin
from tests.support import PATIENCE, eventually

import metaq
from metaq.admin import Admin

TOPIC, GROUP = "orders", "mailer"
RATE = 200
"""Messages per second."""
BEFORE, AFTER = 15.0, 20.0
"""Seconds of load before the first step, and after the last."""
PACE = 4.0
"""Seconds that an operator looks at what the last step has done."""
OPTIONS = ["mappedFileSizeCommitLog=1048576", "slaveReadEnable=true"]


def main(picture: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "gallery"))
    from move_from_rocketmq import Move, draw

    folder = Path(tempfile.mkdtemp(prefix="move-"))
    names, over = RocketmqServer(folder / "names"), threading.Event()
    names.start_namesrv()
    old = RocketmqServer(folder / "old", namesrv=names.namesrv, options=[*OPTIONS, "brokerRole=SYNC_MASTER"])
    (folder / "new").mkdir()
    role = ["brokerName=broker-a", "brokerRole=SLAVE", "brokerId=1"]
    new = MetaqServer(folder / "new", namesrv=names.namesrv, options=[*OPTIONS, *role])
    sent: list[str] = []
    got: list[str] = []
    threads = [
        threading.Thread(target=_send, args=(names.namesrv, over, sent)),
        threading.Thread(target=_consume, args=(names.namesrv, over, got)),
    ]
    try:
        old.start()
        for thread in threads:
            thread.start()
        eventually(lambda: got, what="messages flow")
        does = {
            "copy": lambda: shutil.copytree(old.data / "commitlog", new.data / "commitlog"),
            "start": new.start,
            "stop_sends": lambda: mqadmin(folder, old, "wipeWritePerm", "-b", "broker-a"),
            "stop_old": old.stop,
            "allow_sends": lambda: mqadmin(folder, old, "addWritePerm", "-b", "broker-a"),
        }

        def shell(command: str) -> int:
            does[command]()
            over.wait(PACE if command in {"copy", "start"} else 0)
            return 0

        plan = {"broker": "broker-a", "quiet_seconds": 2, "commands": {name: name for name in does}}
        with Admin(names.namesrv) as admin:
            move = Move(plan, admin, PATIENCE, shell)
            watcher = threading.Thread(target=move.measure, args=(over,))
            watcher.start()
            try:
                time.sleep(BEFORE)
                move.run()
                time.sleep(AFTER)
                eventually(lambda: set(sent) <= set(got), what="all messages are consumed")
            finally:
                over.set()
                watcher.join()
        print(
            f"{len(sent)} messages were acknowledged, and all consumed; {len(got) - len(set(got))} came more than once"
        )
        draw(picture, move.moments, move.events)
    finally:
        over.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for server in (new, old, names):
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _send(namesrv: str, over: threading.Event, sent: list[str]) -> None:
    """Send RATE messages a second, each until it is acknowledged."""
    with metaq.Producer(namesrv, timeout=3) as producer:
        begun, number = time.monotonic(), 0
        while not over.is_set():
            try:
                producer.send(TOPIC, f"{number}".encode())
            except metaq.MetaqError:
                over.wait(0.2)
                begun = time.monotonic() - (number + 1) / RATE  # what was not sent meanwhile is not made up for
                continue
            sent.append(f"{number}")
            number += 1
            over.wait(max(0.0, begun + number / RATE - time.monotonic()))


def _consume(namesrv: str, over: threading.Event, got: list[str]) -> None:
    with metaq.Consumer(namesrv, group=GROUP, topics=TOPIC, start="earliest") as consumer:
        while not over.is_set():
            message = consumer.receive(0.2)
            if message is not None:
                with message:
                    got.append(message.body.decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
