"""A ZooKeeper client for requests in bulk, called from a thread. Changes of its connection are reported to the event
loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL, ANYONE_ID_UNSAFE, AUTH_IDS, OPEN_ACL_UNSAFE, Permissions

from metaq.registry.zookeeper.layout import parents

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 500
"""Most open requests, so that neither side queues many."""
ANSWER_SECONDS: Final = 30.0
"""Longest wait for an answer; a lost connection is noticed earlier, by the session."""
RECONNECT_SECONDS_MAX: Final = 2.0
"""Longest pause between two tries to connect: kazoo's own grows to a minute, longer than a session lives."""
_BOTH_WAYS: Final = 2
"""socket.SHUT_RDWR."""
PROTECTED: Final = (ACL(Permissions.ALL, AUTH_IDS), ACL(Permissions.READ, ANYONE_ID_UNSAFE))
"""Access to nodes of a session with credentials: who has them may do everything, and everybody may read."""

Failures = (KazooException, KazooTimeoutError)
"""Errors of any request when the connection or the session is gone."""
Undone = (BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency)
"""Errors in a transaction whose conditions did not hold: of that one, of those before it, and of those behind it."""

Item = TypeVar("Item")


class Node(NamedTuple):
    """A node as it was read."""

    data: bytes
    version: int
    """Counts the changes of `data`."""
    owner: int
    """Session that keeps it; 0: it is persistent."""


class Session:
    """A client that stays connected until it is closed; when its session expires it begins another.

    Its methods block: call them in a thread.

    Args:
        hosts: `host:port`, `,`-separated.
        timeout: of the session, seconds.
        changed: called in the event loop when the connection has come or gone, and by watches.
        digest: `user:password` that it proves to ZooKeeper, and that nodes which it makes can be changed with; "": none, and
            anybody may change them.
        connect_seconds: longest wait for one server to take a connection; None: the time-out of the session.
        in_order: try the servers in the order of `hosts`, after a broken connection from the next one on, not in one of chance, in
            which the same one may be the next.
    """

    scheme: ClassVar = "digest"
    """Of authentication."""

    def __init__(
        self,
        hosts: str,
        timeout: float,
        changed: Callable[[], None],
        *,
        digest: str = "",
        connect_seconds: float | None = None,
        in_order: bool = False,
    ) -> None:
        self._why = _LastWord()
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self.connected = False
        self.number = 0
        """Of the session, also while the connection is away and the session may go on; 0 before the first and after its end. Set by
        kazoo's thread before anything is sent in the session."""
        self.timeout = 0.0
        """Of the session, seconds, as ZooKeeper has granted it with the newest connection; 0: there was none, or this version of kazoo
        does not tell."""
        self.rejected = False
        """ZooKeeper does not know such credentials. The client has ended."""
        self._acl = list(PROTECTED if digest else OPEN_ACL_UNSAFE)
        self._client = KazooClient(
            hosts,
            timeout,
            # kazoo retries for ever: giving up is decided by the registrar, which makes a new client.
            connection_retry=KazooRetry(max_tries=-1, max_delay=min(RECONNECT_SECONDS_MAX, timeout / 10)),
            logger=self._why.logger,
            handler=_Handler(connect_seconds if connect_seconds is not None else timeout),
            auth_data=[(self.scheme, digest)] if digest else None,
            default_acl=self._acl,
            randomize_hosts=not in_order,
        )
        self._hear_timeouts()
        self._client.add_listener(self._on_state)

    def _hear_timeouts(self) -> None:
        """Have `timeout` set with each connection."""
        connection = getattr(self._client, "_connection", None)
        invoke = getattr(connection, "_invoke", None)
        if connection is None or invoke is None:
            return

        def hear(*args: Any, **kwargs: Any) -> Any:
            # kazoo keeps no record of what was granted. This runs in its thread, before it reports the connection.
            answer = invoke(*args, **kwargs)
            if isinstance(answer, tuple) and (granted := getattr(answer[0], "time_out", 0)) > 0:
                self.timeout = granted / 1000
            return answer

        connection._invoke = hear  # noqa: SLF001

    def _on_state(self, state: str) -> None:
        """Report a change of the connection. Called in a thread of kazoo's."""
        if state == KazooState.CONNECTED:
            self.number = self.credentials[0]
        elif state == KazooState.LOST:
            self.number = 0
            self.rejected = self.rejected or self._client.client_state == KeeperState.AUTH_FAILED
        self._tell(lambda: self._set_connected(state == KazooState.CONNECTED))

    def _tell(self, what: Callable[[], None]) -> None:
        # kazoo's threads may report once more when the broker has stopped.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def _set_connected(self, connected: bool) -> None:
        self.connected = connected
        self._changed()

    @property
    def why(self) -> str:
        """Kazoo's last message about a failed connection."""
        return self._why.text

    @property
    def credentials(self) -> tuple[int, bytes]:
        """Number and password of the session: another number after it has expired, 0 without connection."""
        number, password = self._client.client_id or (0, b"")
        return int(number), bytes(password)

    @property
    def id(self) -> int:
        return self.credentials[0]

    def open(self) -> None:
        """Begin to connect."""
        self._client.start_async()

    def close(self) -> None:
        """End the session, and with it every ephemeral node, if ZooKeeper can be reached."""
        self._client.stop()
        self._client.close()

    def reconnect(self) -> None:
        """Break the connection, so that another server is tried. Requests without answer fail; the session goes on.

        For the event loop: what is asked from then on waits for the next connection.
        """
        connection = getattr(self._client, "_connection", None)
        found = getattr(connection, "_socket", None)
        with contextlib.suppress(OSError):  # it is broken already
            if found is not None:
                found.shutdown(_BOTH_WAYS)
        self._set_connected(False)

    # What follows raises one of `Failures`: ask again when there is a connection.

    def node(self, path: str, *, watch: bool = False) -> Node | None:
        """Return a node; None if it does not exist. `watch`: have `changed` called once when it is made, deleted or written."""
        while True:
            try:
                data, stat = self._client.get_async(path, self._watcher(watch)).get(timeout=ANSWER_SECONDS)
            except NoNodeError:
                if not watch or self._client.exists_async(path, self._on_event).get(timeout=ANSWER_SECONDS) is None:
                    return None
            else:
                return Node(data or b"", int(stat.version), int(stat.ephemeralOwner))

    def nodes(self, paths: Iterable[str], *, watch: bool = False) -> dict[str, Node]:
        """Return path → node, of those that exist. `watch`: have `changed` called once when one of these is another."""
        found = {}
        for path, result in self._in_bulk(paths, lambda path: self._client.get_async(path, self._watcher(watch))):
            with contextlib.suppress(NoNodeError):
                data, stat = result.get(timeout=ANSWER_SECONDS)
                found[path] = Node(data or b"", int(stat.version), int(stat.ephemeralOwner))
        return found

    def sync(self, path: str) -> None:
        """Have what follows read what the leader of the ensemble has done before."""
        self._client.sync_async(path).get(timeout=ANSWER_SECONDS)

    def swap(self, path: str, data: bytes, version: int) -> int | None:
        """Write a node if it has this version. Return its new version; None: it has another one, or does not exist."""
        try:
            return int(self._client.set_async(path, data, version).get(timeout=ANSWER_SECONDS).version)
        except (BadVersionError, NoNodeError):
            return None

    def transact(self, build: Callable[[TransactionRequest], None]) -> bool:
        """Do what `build` puts together in one transaction. Return whether it was done: a version, or what exists, was another."""
        transaction = self._client.transaction()
        build(transaction)
        errors = [one for one in transaction.commit_async().get(timeout=ANSWER_SECONDS) if isinstance(one, Exception)]
        for error in errors:
            if not isinstance(error, Undone):
                raise error
        return not errors

    def touch(self, path: str) -> IAsyncResult:
        """Begin a write to a node that changes nothing; its outcome is the node's metadata (`ephemeralOwner`).

        A quorum of the ensemble logs it, and it was done in this session. It writes the node's access rules as they are: that wakes
        nobody who watches the node, and overwrites no text that somebody else may have written meanwhile.
        """
        return self._client.set_acls_async(path, self._acl)

    def owner(self, path: str) -> tuple[int, str] | None:
        """Return the session that keeps a node (0: persistent) and the node's text; None if it does not exist."""
        try:
            data, stat = self._client.get_async(path).get(timeout=ANSWER_SECONDS)
        except NoNodeError:
            return None
        return int(stat.ephemeralOwner), (data or b"").decode(errors="replace")

    def owners(self, paths: Iterable[str], *, watch: bool = False) -> dict[str, tuple[int, str]]:
        """Return node → as of `owner`, of those that exist. `watch`: have `changed` called once when one of these is another."""
        found = {}
        for path, result in self._in_bulk(paths, lambda path: self._client.get_async(path, self._watcher(watch))):
            with contextlib.suppress(NoNodeError):
                data, stat = result.get(timeout=ANSWER_SECONDS)
                found[path] = int(stat.ephemeralOwner), (data or b"").decode(errors="replace")
        return found

    def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str]]:
        """Return the names below each node, sorted; none below a missing one.

        Args: watch: have `changed` called once when the names below one of the nodes that exist are others.
        """
        found = []
        ask = self._client.get_children_async
        for _, result in self._in_bulk(paths, lambda path: ask(path, self._watcher(watch))):
            try:
                found.append(sorted(result.get(timeout=ANSWER_SECONDS)))
            except NoNodeError:
                found.append([])
        return found

    def texts(self, paths: Iterable[str]) -> dict[str, str]:
        """Return node → text of those that exist."""
        return {path: text for path, (_, text) in self.owners(paths).items()}

    def _watcher(self, watch: bool) -> Callable[[WatchedEvent], None] | None:
        return self._on_event if watch else None

    def watch(self, path: str) -> None:
        """Have `changed` called once when the node is made, deleted or written."""
        self._client.exists_async(path, watch=self._on_event).get(timeout=ANSWER_SECONDS)

    def watch_children(self, path: str) -> list[str]:
        """Return the names below a node, sorted, and have `changed` called once when they are others. Below a missing node there
        are none, and `changed` is called when it is made."""
        while True:
            try:
                found = self._client.get_children_async(path, watch=self._on_event).get(timeout=ANSWER_SECONDS)
            except NoNodeError:
                if self._client.exists_async(path, watch=self._on_event).get(timeout=ANSWER_SECONDS) is None:
                    return []
            else:
                return sorted(found)

    def _on_event(self, _event: WatchedEvent) -> None:
        """Report a watch. Called in a thread of kazoo's. One function for all, so that a watch set twice fires once."""
        self._tell(self._changed)

    def create(self, nodes: Mapping[str, str], *, ephemeral: bool = True) -> list[str]:
        """Make nodes with their texts, and missing parents. Return those that exist already, which stay as they are."""
        taken, orphans = self._create(nodes, ephemeral)
        if orphans:
            self.ensure(dict.fromkeys(parent for path in orphans for parent in parents(path)))
            taken += self._create({path: nodes[path] for path in orphans}, ephemeral)[0]
        return taken

    def _create(self, nodes: Mapping[str, str], ephemeral: bool) -> tuple[list[str], list[str]]:
        taken, orphans = [], []
        for path, result in self._in_bulk(
            nodes, lambda path: self._client.create_async(path, nodes[path].encode(), ephemeral=ephemeral)
        ):
            try:
                result.get(timeout=ANSWER_SECONDS)
            except NodeExistsError:
                taken.append(path)
            except NoNodeError:
                orphans.append(path)
        return taken, orphans

    def ensure(self, paths: Iterable[str], *, shared: bool = False) -> None:
        """Make persistent nodes without text, in this order, where there are none. `shared`: everybody may make nodes below them."""
        # In order and without waiting: ZooKeeper handles one client's requests one after the other.
        acl = OPEN_ACL_UNSAFE if shared else self._acl
        for _, result in self._in_bulk(paths, lambda path: self._client.create_async(path, None, acl)):
            with contextlib.suppress(NodeExistsError):
                result.get(timeout=ANSWER_SECONDS)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete nodes; missing ones are no error."""
        for _, result in self._in_bulk(paths, self._client.delete_async):
            with contextlib.suppress(NoNodeError):
                result.get(timeout=ANSWER_SECONDS)

    def replace(self, path: str, text: str) -> None:
        """Replace a node by an ephemeral one of ours in one transaction: clients see it change, not vanish."""
        transaction = self._client.transaction()
        transaction.delete(path)
        transaction.create(path, text.encode(), ephemeral=True)
        for outcome in transaction.commit():
            if isinstance(outcome, Exception):
                raise outcome

    def write(self, path: str, text: str) -> None:
        """Set the text of a persistent node; make it if it is missing."""
        self.ensure([*parents(path), path])
        self._client.set_async(path, text.encode()).get(timeout=ANSWER_SECONDS)

    def write_all(self, nodes: Mapping[str, str]) -> None:
        """Set the texts of persistent nodes; make those that are missing."""
        missing = self._write(nodes)
        if missing:
            self.ensure(dict.fromkeys(path for node in missing for path in (*parents(node), node)))
            self._write({path: nodes[path] for path in missing})

    def _write(self, nodes: Mapping[str, str]) -> list[str]:
        missing = []
        for path, result in self._in_bulk(nodes, lambda path: self._client.set_async(path, nodes[path].encode())):
            try:
                result.get(timeout=ANSWER_SECONDS)
            except NoNodeError:
                missing.append(path)
        return missing

    def remove(self, path: str) -> None:
        """Delete a persistent node; one with children of others stays, without text."""
        try:
            self._client.delete_async(path).get(timeout=ANSWER_SECONDS)
        except NotEmptyError:
            self._client.set_async(path, b"").get(timeout=ANSWER_SECONDS)
        except NoNodeError:
            pass

    @staticmethod
    def _in_bulk(items: Iterable[Item], begin: Callable[[Item], IAsyncResult]) -> Iterator[tuple[Item, IAsyncResult]]:
        waiting = iter(items)
        while some := [(item, begin(item)) for item in itertools.islice(waiting, AT_ONCE_MAX)]:
            yield from some


async def close_within(session: Session, seconds: float) -> None:
    """Close a session, which also ends a request that a thread waits for; a close that is not answered in time ends in the
    background."""
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def close() -> None:
        try:
            session.close()
        except Exception as error:  # noqa: BLE001  kazoo says that its thread goes on
            log.info("the connection to ZooKeeper does not end: %r", error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(closed.set)

    try:
        threading.Thread(target=close, name="zookeeper close", daemon=True).start()
    except RuntimeError:  # the interpreter exits, and takes no new threads
        close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await closed.wait()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Kazoo's threads, with a limit of their own for a server that does not take connections, as a machine that is off."""

    def __init__(self, connect_seconds: float) -> None:
        super().__init__()
        self._connect_seconds = connect_seconds

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs.get("timeout", self._connect_seconds), self._connect_seconds)
        return super().create_connection(*args, **kwargs)


class _LastWord:
    """A logger for kazoo, which logs each failed attempt; keeps the last message only."""

    def __init__(self) -> None:
        self.text = ""
        self.logger = logging.Logger("kazoo", logging.WARNING)  # noqa: LOG001  not in the tree: nobody else hears it
        handler = logging.Handler()
        handler.emit = self._keep  # type: ignore[method-assign]
        self.logger.addHandler(handler)

    def _keep(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
