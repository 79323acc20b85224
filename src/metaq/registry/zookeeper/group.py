"""Nodes of a group of replicas in ZooKeeper (docs/formats/failover.md): its state, and which of its brokers are alive.

Below `/metaq-failover/<cluster>/<broker name>`, and below the chroot if the addresses have one:

    state           the group's state, JSON; persistent; written by compare-and-set alone
    live            no text; its version counts what comes and goes below it by our own doing
    live/<member>   a broker that is alive, JSON; ephemeral

A transaction that makes or replaces a live node writes `live` too, if it has the version that was read before: so nobody replaces a
node that is not the one he has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.interfaces import IAsyncResult

from metaq.address import join_address, split_address
from metaq.clock import SYSTEM, Clock
from metaq.errors import (
    BadRequest,
    ClientClosed,
    ConfigError,
    ConnectionFailed,
    MetaqError,
    NotOurs,
    Reason,
    Refused,
    UnknownOutcome,
)
from metaq.model.failover import GroupState, Holder, Member, Seen
from metaq.registry.zookeeper.client import LEAVE_SECONDS, ZookeeperClient
from metaq.registry.zookeeper.layout import parents
from metaq.registry.zookeeper.session import Failures, Node, Session
from metaq.wire.failover import group_state, group_state_of, member, member_of

ROOT: Final = "/metaq-failover"
GIVE_UP_SHARE: Final = 0.5
"""Part of the session time-out after which a renewal is given up: a lease holds no longer."""
RENEWAL_SHARE: Final = 0.2
"""Part of the session time-out after which a renewal without answer breaks the connection, so that the client tries another server of
the ensemble while its lease still holds."""
RETRY_SECONDS: Final = 0.02
"""Pause before a renewal is sent again."""
CONNECT_SHARE: Final = 1 / 6
"""Part of the session time-out that one server may take to accept a connection."""
ROUNDS_MAX: Final = 8
"""Tries to change a node that others change at the same time."""
GARBAGE_CHARS_MAX: Final = 80

_ANSWERS: Final = (
    NoAuthError,
    InvalidACLError,
    NoNodeError,
    NodeExistsError,
    BadVersionError,
    NotEmptyError,
    SessionMovedError,
)
"""Errors that ZooKeeper itself answers: nothing was changed, nor will be. After any other one a change may have been made."""
_BROKEN: Final = (*Failures, RuntimeError, struct.error)
"""Errors of a request; the last two are kazoo's for an answer that it cannot read."""

Result = TypeVar("Result")


class GroupNodes:
    """One broker's view of its group's nodes, in a session that is followed by another when it has expired.

    Made anywhere; used in one event loop. What is asked waits for a connection; each call ends within the time-out of the session. All
    raise

    - ConnectionFailed: there is no connection, or it broke. After `create` and `swap` it is UnknownOutcome if they may have been done.
    - ConfigError: an option is wrong, or does not give access: the operator must mend it.
    - Refused: a node holds what no broker has written: the operator must remove it.
    - ClientClosed: after `close`.

    Args:
        connect: `host:port`, `,`-separated, perhaps with a chroot behind them (`/metaq`), which must exist.
        cluster, broker: names that the group is kept under.
        session_timeout: asked for, seconds; ZooKeeper's configuration bounds it.
        changed: called in the event loop when the state or a live node may have changed, when the connection came or went, and when the
            session was lost.
        auth: `digest:user:password`; "": none, and anybody may change the nodes.
    Raises ConfigError: addresses, names or `auth` cannot be right.
    """

    def __init__(
        self,
        connect: str,
        cluster: str,
        broker: str,
        session_timeout: float,
        changed: Callable[[], None],
        auth: str = "",
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._connect, self._chroot = checked_addresses(connect)
        self._digest = _digest(auth)
        self._seconds, self._changed, self._elapsed = session_timeout, changed, clock.elapsed
        self._random_below = clock.random_below
        self.path = f"{ROOT}/{_name('brokerClusterName', cluster)}/{_name('brokerName', broker)}"
        """Of the group, below the chroot."""
        self._state, self._live = f"{self.path}/state", f"{self.path}/live"
        self._client: ZookeeperClient | None = None
        self._own = 0
        """Number of the member whose node is ours, or may be."""
        self._doubtful: set[int] = set()
        """Versions of the state of which a swap has had no answer. For the client's thread."""

    def open(self) -> None:
        """Begin to connect."""
        hosts = self._connect.split(",")
        mixed = [hosts.pop(self._random_below(len(hosts))) for _ in range(len(hosts))]
        self._client = ZookeeperClient(
            ",".join(mixed) + self._chroot,
            self._seconds,
            self._seconds,
            undone="this broker takes no messages",
            digest=self._digest,
            connect_seconds=self._seconds * CONNECT_SHARE,
            # A lease has no time for a second try at the server that has just failed.
            in_order=True,
        )
        self._client.listen(self._changed)

    async def close(self, seconds: float = LEAVE_SECONDS) -> None:
        """End the session, and with it our live node, if ZooKeeper can be reached; at most for `seconds`."""
        if self._client is not None:
            await self._client.close(seconds)

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.session.id != 0

    @property
    def session(self) -> int:
        """Number of the session, also while its connection is away and it may go on; 0: there is none."""
        return self._client.session.number if self._client is not None else 0

    @property
    def session_timeout(self) -> float:
        """Seconds after which ZooKeeper ends a session that is silent: granted with the newest connection, asked for before."""
        return (self._client.session.timeout if self._client is not None else 0.0) or self._seconds

    @property
    def why(self) -> str:
        """The last word about a failed connection."""
        return self._client.why if self._client is not None else ""

    # ---------------------------------------------------------------------- the state

    async def look(self) -> Seen:
        """Return the group's nodes, and have `changed` called when one of them changes.

        They are no older than what was written before the call by way of the ensemble's present leader. A swap without an answer from
        before is settled then: it has been made, and is seen, or is never made.
        """
        return await self._run(self._look)

    def _look(self, session: Session) -> Seen:
        session.sync(self._state)
        found = self._settled(session)
        # The live nodes after the state: a leader of that state that has come meanwhile is seen.
        names = session.watch_children(self._live)
        nodes = session.nodes([f"{self._live}/{name}" for name in names], watch=True)
        if found is None and not names:
            self._check_chroot(session)
        state = None
        if found is not None:
            try:
                state = group_state_of(found.data)
            except BadRequest as error:
                raise self._garbage(self._state, found, str(error)) from None
        live = {}
        for path, node in nodes.items():
            one = self._member(path, node)
            live[one.member] = one
        return Seen(state, found.version if found is not None else -1, live)

    def _settled(self, session: Session) -> Node | None:
        """Return the state's node, in a version that no swap without an answer can still apply to."""
        doubtful = frozenset(self._doubtful)
        for _ in range(ROUNDS_MAX):
            found = session.node(self._state, watch=True)
            if found is None or found.version not in doubtful:
                self._doubtful -= doubtful
                return found
            # A request may still be on its way, from an old connection or session: the same text in a new version makes it void.
            session.swap(self._state, found.data, found.version)
        raise ConnectionFailed(f"{self._state} in ZooKeeper changes all the time")

    async def create(self, state: GroupState) -> bool:
        """Make the group's state, and the nodes above it. Return False: there is one already. Raises UnknownOutcome, too."""
        data = group_state(state)

        def work(session: Session) -> bool:
            self._make(session, self.path)
            return not session.create({self._state: data.decode()}, ephemeral=False)

        return await self._run(work, changes=True)

    async def swap(self, state: GroupState, version: int) -> int | None:
        """Put a state in the place of the one with this version. Return its version; None: another one is there.

        Raises UnknownOutcome, too: the next `look` that succeeds settles it.
        """
        data = group_state(state)

        def work(session: Session) -> int | None:
            try:
                return session.swap(self._state, data, version)
            except _BROKEN as error:
                if not isinstance(error, _ANSWERS):
                    self._doubtful.add(version)
                raise

        return await self._run(work, changes=True)

    # ---------------------------------------------------------------------- our live node

    async def announce(self, own: Member) -> Holder | None:
        """Make our live node, or write it anew if it is of this session. Return who has it in another session; None: it is ours."""
        path, data = self._node_of(own), member(own)

        def work(session: Session) -> Holder | None:
            self._own = own.member
            for _ in range(ROUNDS_MAX):
                parent, found = session.node(self._live), session.node(path)
                if parent is None:
                    self._make(session, self._live)
                elif found is None:
                    if self._replace(session, path, parent.version, data):
                        return None
                elif found.owner != session.number:
                    return Holder(self._member(path, found), found.owner)
                elif found.data == data or session.swap(path, data, found.version) is not None:
                    return None
            raise ConnectionFailed(f"{path} in ZooKeeper changes all the time")

        return await self._run(work)

    async def take_over(self, own: Member, holder: Holder) -> bool:
        """Put our live node in the place of one of another session. Return whether it was still that session's, and is ours now."""
        path, data = self._node_of(own), member(own)

        def work(session: Session) -> bool:
            self._own = own.member
            for _ in range(ROUNDS_MAX):
                parent, found = session.node(self._live), session.node(path)
                if parent is None or found is None or found.owner != holder.session:
                    return (
                        found is not None and found.owner == session.number
                    )  # by a request of before, without an answer
                if self._replace(session, path, parent.version, data, found.version):
                    return True
            raise ConnectionFailed(f"{path} in ZooKeeper changes all the time")

        return await self._run(work)

    async def renew(self, own: Member) -> float:
        """Have a quorum of the ensemble log a write to our own live node, which changes nothing. Does not wait for other calls.

        What the node says is changed by `announce`.

        Returns when the request that was answered was sent, `Clock.elapsed`. If a server does not answer within RENEWAL_SHARE of the
        session time-out, or its connection breaks, another one is asked. Raises NotOurs: the node is gone, or another session's.
        ConnectionFailed: no server has answered within GIVE_UP_SHARE of the session time-out.
        """
        seconds = self.session_timeout * GIVE_UP_SHARE
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(ConnectionFailed):
                        return await self._renew(await self._connection(), self._node_of(own))
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise ConnectionFailed(self._away(f"has not answered a renewal within {seconds:.3g} s")) from None

    async def _renew(self, session: Session, path: str) -> float:
        """Ask the server that the client is connected to, once. Returns, and raises, what `renew` does."""
        if not session.timeout:
            raise ConfigError(
                "this version of kazoo does not tell the time-out of its session, so that no lease can be kept: install kazoo 2.11"
            )
        sent = self._elapsed()
        seconds = session.timeout * RENEWAL_SHARE
        try:
            async with asyncio.timeout(seconds):
                owner, number = await _outcome(session, session.touch(path))
        except TimeoutError:
            session.reconnect()
            raise ConnectionFailed(self._away(f"has not answered a renewal within {seconds:.3g} s")) from None
        except (NoNodeError, SessionExpiredError):
            raise NotOurs(f"{path} in ZooKeeper is gone, since our session has ended") from None
        except _BROKEN as error:
            raise self._translated(error, changes=False) from error
        # The client's session is read after the answer: it is the one that the request was sent in, or a later one.
        if owner != number:
            raise NotOurs(f"{path} in ZooKeeper is kept by session {owner:#x}, and ours is {number:#x}")
        return sent

    async def retire(self) -> None:
        """Delete our live node, if it is of this session."""

        def work(session: Session) -> None:
            path = f"{self._live}/{self._own}"
            for _ in range(ROUNDS_MAX if self._own else 0):
                parent, found = session.node(self._live), session.node(path)
                if parent is None or found is None or found.owner != session.number:
                    break
                if self._replace(session, path, parent.version, None, found.version):
                    break

        await self._run(work)

    def _node_of(self, own: Member) -> str:
        return f"{self._live}/{own.member}"

    def _replace(
        self, session: Session, path: str, parent_version: int, data: bytes | None, version: int | None = None
    ) -> bool:
        """Make a live node, in the place of the one with `version`; without `data` only delete that one. Return whether all was as
        it had been read."""

        def build(transaction: TransactionRequest) -> None:
            transaction.set_data(self._live, b"", parent_version)
            if version is not None:
                transaction.delete(path, version)
            if data is not None:
                transaction.create(path, data, ephemeral=True)

        return session.transact(build)

    def _make(self, session: Session, path: str) -> None:
        """Make a persistent node of the group without text, and those above it. The ones above the group are everybody's."""
        try:
            session.ensure(parents(self.path), shared=True)
            session.ensure(dict.fromkeys((self.path, path)))
        except NoNodeError:
            self._check_chroot(session)
            raise

    # ---------------------------------------------------------------------- what goes wrong

    async def _run(self, work: Callable[[Session], Result], *, changes: bool = False) -> Result:
        """Run `work` in the client's thread, behind what was asked for before. Args: changes: its outcome may be unknown."""
        begun = given_up = False

        def job() -> Result:
            nonlocal begun
            if not session.id:
                raise ConnectionFailed(self._away("cannot be reached"))
            begun = True  # before it is asked whether somebody waits: he asks the other way round
            if given_up:
                raise ConnectionFailed("nobody waits for it any more")
            return work(session)

        try:
            async with asyncio.timeout(self.session_timeout):
                session = await self._connection()
                return await self._client.worker.run(job)  # type: ignore[union-attr]
        except TimeoutError:
            if begun:
                session.reconnect()
            kind = UnknownOutcome if changes and begun else ConnectionFailed
            raise kind(self._away(f"has not answered within {self.session_timeout:g} s")) from None
        except _BROKEN as error:
            raise self._translated(error, changes=changes) from error
        finally:
            given_up = True

    async def _connection(self) -> Session:
        """Return the session, once there is a connection."""
        client = self._client
        if client is None or client.closed:
            raise ClientClosed("the nodes of the group are closed")
        if client.session.rejected:
            raise self._rejected()
        return await client.connection()

    def _translated(self, error: Exception, *, changes: bool) -> MetaqError:
        """Return an error of kazoo's as one of ours."""
        if isinstance(error, NoAuthError):
            return ConfigError(
                f"ZooKeeper {self._connect} does not let this broker read or change {self._chroot}{self.path} {self._as_whom}: set "
                "failoverZookeeperAuth to what the nodes were made with, or give it access to them (setAcl in zkCli.sh)"
            )
        if isinstance(error, AuthFailedError | InvalidACLError):
            return self._rejected()
        if changes and not isinstance(error, _ANSWERS):
            return UnknownOutcome(self._away(f"has not said whether a change was made: {error!r}"))
        return ConnectionFailed(self._away(f"lost or refused a request: {error!r}"))

    def _rejected(self) -> ConfigError:
        return ConfigError(
            f"ZooKeeper {self._connect} does not take the credentials of failoverZookeeperAuth ({self._as_whom}): is its "
            "authentication by digest switched off?"
        )

    @property
    def _as_whom(self) -> str:
        user = self._digest.partition(":")[0]
        return f"as user {user!r} of failoverZookeeperAuth" if user else "without credentials (failoverZookeeperAuth)"

    def _away(self, what: str) -> str:
        assert self._client is not None, "asked after it was opened"
        return self._client.away(what)

    def _check_chroot(self, session: Session) -> None:
        """Return if the chroot exists. Raises ConfigError."""
        if self._chroot and session.node("/") is None:
            raise ConfigError(
                f"there is no node {self._chroot} in ZooKeeper {self._connect}: create {self._chroot} in ZooKeeper, or correct "
                "failoverZookeeper"
            )

    def _member(self, path: str, node: Node) -> Member:
        """Return the member of a live node."""
        name = path.rpartition("/")[2]
        if not node.owner:
            raise self._garbage(path, node, "it is persistent, and no broker makes such a node")
        try:
            one = member_of(node.data)
        except BadRequest as error:
            raise self._garbage(path, node, str(error)) from None
        if name != str(one.member):
            raise self._garbage(path, node, f"it is the node of member {name:.20}, and says member {one.member}")
        return one

    def _garbage(self, path: str, node: Node, why: str) -> Refused:
        whole = f"{self._chroot}{path}"
        text = node.data.decode(errors="replace")[:GARBAGE_CHARS_MAX]
        return Refused(
            Reason.INVALID,
            f"the node {whole} in ZooKeeper {self._connect} is none of a group of replicas: {why}. It says {text!r}. If no broker of a "
            f"later version has written it, remove it: zkCli.sh -server {self._connect.partition(',')[0]} delete {whole}",
        )


async def _outcome(session: Session, result: IAsyncResult) -> tuple[int, int]:
    """Return the owner of the node that was touched, and then the number of the client's session. Raises one of `Failures`."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[int, int]] = loop.create_future()

    def give(owner: int, number: int, error: Exception | None) -> None:
        if outcome.done():  # nobody waits any more
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result((owner, number))

    def answered(result: IAsyncResult) -> None:
        """Called in a thread of kazoo's."""
        error, owner = result.exception, 0
        if error is None:
            owner = int(result.get().ephemeralOwner)
        if not loop.is_closed():
            loop.call_soon_threadsafe(give, owner, session.number, error)

    result.rawlink(answered)
    return await outcome


def checked_addresses(connect: str) -> tuple[str, str]:
    """Return `host:port,…` and the chroot ("" without one) of the option failoverZookeeper. Raises ConfigError."""
    addresses, slash, chroot = connect.strip().partition("/")
    try:
        found = [split_address(one) for one in addresses.split(",")]
    except ConfigError as error:
        raise ConfigError(f"failoverZookeeper={connect}: {error}; need host:port,host:port/chroot") from None
    for host, port in found:
        if not port or not host.isprintable() or " " in host:
            raise ConfigError(f"failoverZookeeper={connect}: {join_address(host, port)!r} is no address of a ZooKeeper")
    chroot = chroot.rstrip("/")
    if not slash or not chroot:
        return ",".join(join_address(*one) for one in found), ""
    for part in chroot.split("/"):
        if fault := _fault(part):
            raise ConfigError(f"failoverZookeeper={connect}: the chroot /{chroot} {fault}")
    return ",".join(join_address(*one) for one in found), f"/{chroot}"


def _name(option: str, name: str) -> str:
    """Return a name that a node can have. Raises ConfigError."""
    if fault := _fault(name):
        raise ConfigError(
            f"{option}={name!r}: with failover=zookeeper it is the name of a node in ZooKeeper, and {fault}"
        )
    return name


def _fault(name: str) -> str:
    """Return why a node cannot have this name; "": it can."""
    if not name:
        return "has a part without a name"
    if name in {".", ".."}:
        return f"{name!r} is no name there"
    if "/" in name:
        return "'/' divides names there"
    return "" if name.isprintable() else "has a character that cannot be printed"


def _digest(auth: str) -> str:
    """Return `user:password` of the option failoverZookeeperAuth. Raises ConfigError, which does not tell the password."""
    if not auth:
        return ""
    scheme, _, digest = auth.partition(":")
    user, colon, password = digest.partition(":")
    if scheme != "digest" or not user or not colon or not password:
        raise ConfigError("failoverZookeeperAuth: need digest:USER:PASSWORD")
    return digest
