"""A master and its slave, each of ours or of RocketMQ 4.9.7, at a name server of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from metaq.admin import Admin
from tests.interop.servers import MetaqNamesrv, MetaqServer, RocketmqServer
from tests.store.log.test_raw import raw_log
from tests.support import PATIENCE, eventually

OURS, ROCKETMQ = "ours", "rocketmq"
FILE = 1 << 20
SMALL = f"mappedFileSizeCommitLog={FILE}"
NAME = "brokerName=broker-a"
SLAVE = ["brokerRole=SLAVE", "brokerId=1", "slaveReadEnable=true"]


class Pair:
    """Two brokers of one name at one name server. `options` are those of both, beside what makes them a pair; `master_options`
    and `slave_options` those of one."""

    def __init__(
        self, folder: Path, master: str, slave: str, role: str = "ASYNC_MASTER", options: Sequence[str] = (),
        master_options: Sequence[str] = (), slave_options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.names = _names(folder / "names", ours=master == slave == OURS)
        self.namesrv = self.names.namesrv if isinstance(self.names, RocketmqServer) else self.names.address
        self._options = [*options, SMALL]
        roles = {
            "master": [f"brokerRole={role}", "slaveReadEnable=true", "slaveTimeout=300000", *master_options],
            "slave": [*SLAVE, *slave_options],
        }
        self.kinds = {"master": master, "slave": slave}
        self.master, self.slave = (
            self._server(folder / who, self.kinds[who], roles[who]) for who in ("master", "slave")
        )

    def _server(self, folder: Path, kind: str, options: list[str]) -> MetaqServer | RocketmqServer:
        if kind == ROCKETMQ:
            return RocketmqServer(folder, namesrv=self.namesrv, options=[*options, *self._options])
        folder.mkdir(parents=True)
        return MetaqServer(folder, namesrv=self.namesrv, options=[*options, *self._options, NAME])

    def ends(self) -> dict[int, int]:
        """Broker id → end of its log."""
        with Admin(self.namesrv) as admin:
            return {one.broker_id: int(one.runtime.get("commitLogMaxOffset", -1)) for one in admin.list_brokers()}

    def served(self) -> tuple[int, int]:
        """Messages that master and slave have given so far."""
        with Admin(self.namesrv) as admin:
            told = {one.broker_id: one.runtime for one in admin.list_brokers()}
        return int(told[0].get("msgGetTotalTodayNow", 0)), int(told[1].get("msgGetTotalTodayNow", 0))

    def is_whole(self) -> int:
        """Where both logs end; 0: one of them is not there, or the slave lacks something."""
        ends = self.ends()
        return ends[0] if len(ends) == 2 and ends[0] == ends[1] else 0

    def wait_until_whole(self) -> int:
        """Return where both logs end, as soon as the slave has what the master has."""
        return eventually(self.is_whole, PATIENCE, what="the slave has what the master has")

    def assert_same(self, since: int = 0) -> None:
        """The slave has the master's bytes."""
        end = self.wait_until_whole()
        assert raw_log(self.slave.data, since, end) == raw_log(self.master.data, since, end)


def _names(folder: Path, *, ours: bool) -> MetaqNamesrv | RocketmqServer:
    """A name server that runs, of ours for a pair of ours: it starts in a moment."""
    if ours:
        folder.mkdir(parents=True)
        names = MetaqNamesrv(folder)
        names.start()
        return names
    rocketmq = RocketmqServer(folder)
    rocketmq.start_namesrv()
    return rocketmq


@contextmanager
def pair(folder: Path, master: str, slave: str, role: str = "ASYNC_MASTER", **options: Sequence[str]) -> Iterator[Pair]:
    """A pair of these kinds, with only its name server started. `options` as `Pair` takes them."""
    both = Pair(folder, master, slave, role, **options)
    try:
        yield both
    finally:
        for server in (both.slave, both.master):
            if not isinstance(server, MetaqServer) or hasattr(server, "_process"):
                server.kill()
        both.names.stop()
