"""Messages of open MetaQ 1.x transactions: buffered in memory, and staged in the log when a chunk is full or memory is short.

The messages of one partition make one *part*. The newest ones are buffered until a chunk is full. A chunk that could
not be staged is kept unchanged: a repeated chunk must have the same content under its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct, field

from metaq.broker.allowance import share_of
from metaq.broker.channel import Channel
from metaq.errors import Reason, Refused
from metaq.model import properties as props
from metaq.model.access import Caller
from metaq.model.metaq1.pair import PartitionSync
from metaq.model.metaq1.partition import PartitionEntry, PartitionPut
from metaq.model.transactions.metaq1 import BranchPhase, BranchState, TransactionKey
from metaq.model.transactions.staging import Chunk, ManifestPart, PartSeal, chunk_crc, part_crc
from metaq.wire.record import encode_batch

CHUNK_BYTES: Final = 256 << 10
"""Bytes of a full chunk; a longer message is a chunk by itself."""
SHARE_BYTES: Final = 4 << 20
"""Buffered bytes of one connection at most."""
GATHERED_BYTES: Final = 64 << 20
"""Buffered bytes of all connections at most."""
_BRANCH_BYTES, _PART_BYTES = 1500, 1000
"""Memory of an open transaction and of one of its parts beside the messages (estimate)."""


class Entries(Protocol):
    """Makes messages of puts (`metaq.broker.metaq1.partitions`)."""

    def entry(self, put: PartitionPut | PartitionSync, caller: Caller) -> PartitionEntry:
        """Check a put and return its message, with an id. Raises Refused, Saving."""
        ...


class GatheredPart(Struct, eq=False):
    """A part with its buffered messages."""

    part: str
    topic: str
    queue_id: int
    waiting: bytes = b""
    """The next chunk to stage, if it is complete."""
    waiting_rows: int = 0
    data: bytearray = field(default_factory=bytearray)
    """Messages behind that chunk."""
    data_rows: int = 0
    chunks: int = 0
    """Staged chunks; `rows`, `bytes` and `crc` are theirs, in the form of a seal."""
    rows: int = 0
    bytes: int = 0
    crc: int = 0
    sealed: bool = False

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self.waiting) + len(self.data)

    @property
    def rows_all(self) -> int:
        return self.rows + self.waiting_rows + self.data_rows

    @property
    def bytes_all(self) -> int:
        return self.bytes + self.held

    def cut(self) -> None:
        """Make a chunk of the buffered messages, if none is waiting."""
        # A chunk that waits has a number and must not change any more, see the module.
        if not self.waiting and self.data:
            self.waiting, self.waiting_rows = bytes(self.data), self.data_rows
            self.data, self.data_rows = bytearray(), 0

    def chunk(self, *, seal: bool) -> Chunk:
        """Return the waiting chunk. `seal`: it is the part's last one."""
        return Chunk(
            part=self.part, number=self.chunks, topic=self.topic, queue_id=self.queue_id, body=self.waiting,
            seal=self.seal if seal else None, of_partition=True,
        )  # fmt: skip

    @property
    def seal(self) -> PartSeal:
        """Seal of the part if it ends with the waiting chunk, or, if none waits, with the staged ones."""
        if not self.waiting:
            return PartSeal(self.chunks, self.rows, self.bytes, self.crc)
        # Chained from chunk to chunk: staged ones need not be read again.
        crc = part_crc(self.crc, chunk_crc(self.waiting))
        return PartSeal(self.chunks + 1, self.rows + self.waiting_rows, self.bytes + len(self.waiting), crc)

    def staged(self) -> None:
        """Note that the waiting chunk is in the log."""
        seal = self.seal
        self.chunks, self.rows, self.bytes, self.crc = seal.chunks, seal.rows, seal.bytes, seal.crc
        self.waiting, self.waiting_rows = b"", 0

    def manifest(self, broker: str) -> ManifestPart:
        """Return the part's entry in a manifest."""
        return ManifestPart(broker, self.part, self.topic, self.queue_id, self.seal)


class Branch(Struct, eq=False):
    """An open transaction: local, or an XA branch."""

    key: TransactionKey
    id: str
    """Id of its staged transaction."""
    channel: Channel
    """Connection that began it. A local transaction ends with it."""
    local: bool
    since_ms: int
    born_host: bytes = b""
    """Address of the first message's sender."""
    deadline: float | None = None
    timed: bool = False
    """Whether the client gave the deadline; such transactions count for maxTxTimeoutTimerCapacity."""
    parts: dict[tuple[str, int], GatheredPart] = field(default_factory=dict)
    held: int = 0
    """Bytes in memory."""
    staged: bool = False
    """Whether chunks of it may be in the log, so that a rollback has to be written there."""

    @property
    def messages(self) -> int:
        return sum([part.rows_all for part in self.parts.values()])

    @property
    def bytes(self) -> int:
        return sum([part.bytes_all for part in self.parts.values()])

    @property
    def state(self) -> BranchState:
        """View for tools."""
        return BranchState(
            str(self.key), BranchPhase.OPEN, self.id, self.channel.remote, self.since_ms, self.messages, self.bytes
        )


def entry_of(entry: PartitionEntry, cluster: str) -> bytes:
    """Encode a message for a chunk. Raises Refused ILLEGAL_MESSAGE: its properties are too long."""
    pairs = {name: value for name, value in entry.properties.items() if name != props.CLUSTER}  # set on apply
    text = props.join(pairs).encode()
    # 2 bytes for the separators of CLUSTER.
    limit = props.PROPERTIES_BYTES_MAX - len(cluster.encode()) - len(props.CLUSTER) - 2
    if len(text) > limit:
        raise Refused(
            Reason.ILLEGAL_MESSAGE,
            f"a message for topic {entry.topic} has {len(text)} bytes of properties, the limit is {limit}",
        )
    return encode_batch([(entry.flag, entry.body, text)])


class Memory:
    """Accounting of buffered bytes, per connection and in all.

    Args: peer_bytes_max: bytes of all that clients may make the broker keep, as it is now.
    """

    def __init__(self, peer_bytes_max: Callable[[], int]) -> None:
        self.bytes = 0
        self._peer_bytes_max = peer_bytes_max
        self._shares: dict[Channel, int] = {}
        self._branches: dict[str, Branch] = {}
        """Transactions with buffered messages, the longest holder first."""

    @property
    def limit(self) -> int:
        """Buffered bytes of all connections at most: what an XA branch has gathered outlives its connection."""
        return min(GATHERED_BYTES, self._peer_bytes_max() // 8)

    def is_full(self, size: int) -> bool:
        """Return whether `size` more bytes are too many for all connections together."""
        return self.bytes + size > self.limit

    def is_full_for(self, channel: Channel, size: int) -> bool:
        """Return whether `size` more bytes are too many for a connection."""
        return self.share(channel) + size > SHARE_BYTES

    def check(self, channel: Channel, size: int) -> None:
        """Return if `size` more bytes fit. Raises Refused BUSY."""
        if self.is_full_for(channel, size) or self.is_full(size):
            raise Refused(
                Reason.BUSY,
                f"{self.share(channel)} bytes of transactions of this connection wait in memory, {self.bytes} of all; the limits "
                f"are {SHARE_BYTES} and {self.limit}: try again, or commit or roll back some",
            )

    def share(self, channel: Channel) -> int:
        """Return the buffered bytes of a connection's transactions."""
        return self._shares.get(channel, 0)

    def oldest(self, count: int) -> list[Branch]:
        """Return up to `count` transactions with buffered messages, the longest holder first."""
        return list(itertools.islice(self._branches.values(), count))

    def postpone(self, branch: Branch) -> None:
        """Move a transaction that cannot be staged now behind the others."""
        if self._branches.pop(branch.id, None) is not None:
            self._branches[branch.id] = branch

    def add(self, branch: Branch, more: int) -> None:
        """Add bytes to a transaction, or remove them (below 0)."""
        if not more:
            return
        branch.held += more
        self.bytes += more
        branch.channel.keep(more)
        share = self._shares.get(branch.channel, 0) + more
        if share:
            self._shares[branch.channel] = share
        else:
            del self._shares[branch.channel]
        if branch.held:
            self._branches.setdefault(branch.id, branch)
        else:
            self._branches.pop(branch.id, None)


class Share(Struct):
    """Counts of open transactions, of one peer or of all."""

    transactions: int = 0
    parts: int = 0
    """Parts of these transactions; each takes memory, however few messages it has."""


class Counts:
    """Counts of open transactions and parts, per peer and in all.

    The peer of a local transaction is its connection. That of an XA branch, which outlives connections, is the client that began
    it: its account, or its address.
    """

    def __init__(self) -> None:
        self.all = Share()
        self._peers: dict[Channel | str, Share] = {}

    def of(self, channel: Channel, *, local: bool) -> Share:
        """Return the counts of the peer of such a transaction."""
        return self._peers.get(_peer(channel, local=local), Share())

    def check_transactions(self, limit: int, channel: Channel, *, local: bool) -> None:
        """Return if one more transaction may be opened. Raises Refused BUSY."""
        count, mine = self.all.transactions, self.of(channel, local=local).transactions
        if count >= limit or mine >= share_of(limit):
            raise Refused(
                Reason.BUSY,
                f"{count} transactions are open, {mine} of them {_of_this(local=local)}; the limits are {limit} "
                f"(stagedPartsMax) and {share_of(limit)}: commit or roll back some",
            )

    def check_parts(self, limit: int, branch: Branch) -> None:
        """Return if one more part may be opened. Raises Refused BUSY."""
        count, mine = self.all.parts, self.of(branch.channel, local=branch.local).parts
        if count >= limit or mine >= share_of(limit):
            raise Refused(
                Reason.BUSY,
                f"there are messages for {count} partitions in open transactions, counted in each, {mine} "
                f"{_of_this(local=branch.local)}; the limits are {limit} (stagedPartsMax) and {share_of(limit)}: "
                "commit or roll back some",
            )

    def add(self, branch: Branch, transactions: int, parts: int) -> None:
        """Count opened transactions and parts, or ended ones (below 0)."""
        branch.channel.keep(transactions * _BRANCH_BYTES + parts * _PART_BYTES)
        peer = _peer(branch.channel, local=branch.local)
        share = self._peers.setdefault(peer, Share())
        for one in (self.all, share):
            one.transactions += transactions
            one.parts += parts
        # Or the table would grow with every client that was ever here.
        if not share.transactions:
            del self._peers[peer]


def _peer(channel: Channel, *, local: bool) -> Channel | str:
    return channel if local else channel.caller.client


def _of_this(*, local: bool) -> str:
    return "local ones of this connection" if local else "branches of this client"
