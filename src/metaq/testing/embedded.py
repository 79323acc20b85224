"""A name server and a broker in a process of their own, with small files, on free ports."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from metaq.testing.ports import HeldPort
from metaq.testing.process import START_SECONDS, ServerDied, ServerProcess, option_flags

SMALL: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 20_000,
    "maxIndexNum": 80_000,
    # A developer's disk is often fuller than a server's may be.
    "diskMaxUsedSpaceRatio": 95,
    "cleanFileForciblyEnable": "false",
}
"""File sizes for tests: a few megabytes instead of gigabytes. A message must still fit into one file."""

BrokerDied = ServerDied
"""What an `EmbeddedBroker` raises that did not start, or ended by itself."""


class EmbeddedBroker(ServerProcess):
    """`metaq up` as a child process: a real broker and name server, ready in about a second.

    Args:
        data: folder of the store; by default a temporary one that goes with the broker.
        options: any option of docs/configuration.md, by RocketMQ's name, over those that keep files at a few megabytes for tests
            (`metaq.testing.embedded.SMALL`); a message must still fit into one.
        accounts: the text of a `plain_acl.yml` (docs/security.md): clients must sign then. `write_accounts` changes it.
        environment: variables of the child beside ours, for example METAQ_HOT=0 for the pure-Python fallback.
        timeout: seconds that a start may take, 120 by default.

    A context manager; or call `start` and `stop`, and `close` at last. It ends with its parent, however that ends. Its two ports are
    chosen at the first start and held until `close`, also while it is down, so that a restart finds them free.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        options: Mapping[str, object] | None = None,
        accounts: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = START_SECONDS,
    ) -> None:
        self._temporary = data is None
        self.data = pathlib.Path(data if data is not None else tempfile.mkdtemp(prefix="metaq-test-"))
        super().__init__("the embedded broker", self.data.with_name(self.data.name + ".log"), environment, timeout)
        self.namesrv = ""
        """`host:port` of the name server, for clients."""
        self.broker = ""
        """`host:port` of the broker."""
        self._ports: tuple[HeldPort, HeldPort] | None = None
        self._acl_file = self.data.with_name(self.data.name + "-accounts") / "plain_acl.yml"
        guarded = {} if accounts is None else {"aclEnable": "true", "aclPath": self._acl_file}
        self._options = {**SMALL, **guarded, **(options or {})}
        if accounts is not None:
            self.write_accounts(accounts)

    def write_accounts(self, accounts: str) -> None:
        """Write the accounts of a broker that was made with some. They are in force within a second."""
        folder = self._acl_file.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh = folder / "plain_acl.yml.new"
        fresh.write_text(accounts)
        fresh.replace(self._acl_file)

    def launch(self) -> None:
        """As `ServerProcess.launch`. Raises OSError too: there is no free port."""
        if self._ports is None:
            # Clients know the ports after a restart. A broker may want the one below for its VIP port, the one above for its slaves.
            self._ports = HeldPort(), HeldPort(-2, 1)
        super().launch()

    def start(self) -> Self:
        """Start, and return when connections are accepted. After a stop or kill: on the same ports and data.

        Raises ServerDied: it did not get ready, or runs already.
        """
        self.launch()
        self.wait_ready()
        return self

    def kill(self) -> None:
        """kill -9: what a crash leaves; also of one that has ended by itself, so that it can be started again.

        Raises ServerDied if it was not started.
        """
        # One that has ended by itself has no process to kill, but must be forgotten before it can be started again.
        if self.death:
            self.end()
        else:
            super().kill()

    def freeze(self) -> None:
        """The same as `pause`."""
        self.pause()

    def thaw(self) -> None:
        """The same as `resume`."""
        self.resume()

    def close(self) -> None:
        """End it whatever its state, and remove the data if it was temporary."""
        try:
            if self.alive:
                self.stop()
        finally:
            # Also after a failed `stop`: no test may leave a process behind.
            self.end()
            held, self._ports = self._ports, None
            for port in held or ():
                port.close()
            if self._temporary:
                shutil.rmtree(self.data, ignore_errors=True)
                self.log.unlink(missing_ok=True)
                shutil.rmtree(self._acl_file.parent, ignore_errors=True)

    def _arguments(self) -> Sequence[str]:
        assert self._ports is not None
        namesrv, broker = self._ports
        ports = ["--port", str(broker.port), "--namesrv-port", str(namesrv.port)]
        return ["up", "--data", str(self.data), *ports, *option_flags(self._options)]

    def _is_ready(self, line: str) -> None:
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.namesrv, self.broker = words["namesrv"], words["broker"]

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
