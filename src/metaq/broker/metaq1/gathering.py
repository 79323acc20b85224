"""What was put into transactions of 1.x clients and is not decided yet: gathered in memory, staged when that is too much.

The messages of one partition make one *part*. Its newest ones wait here until a chunk of them is full; a chunk that could not be
staged waits as it is, because under its number nothing else may come.
"""

from __future__ import annotations

import itertools
from typing import Final

from msgspec import Struct, field

from metaq.broker.channel import Channel
from metaq.errors import Reason, Refused
from metaq.model import properties as props
from metaq.model.metaq1.partition import PartitionEntry
from metaq.model.transactions.metaq1 import BranchPhase, BranchState, TransactionKey
from metaq.model.transactions.staging import Chunk, ManifestPart, Seal, chunk_crc, part_crc
from metaq.wire.record import encode_batch

CHUNK_BYTES: Final = 256 << 10
"""A chunk is full at so many bytes; a longer message is one by itself."""
SHARE_BYTES: Final = 4 << 20
"""What one connection may have gathered."""
GATHERED_BYTES: Final = 64 << 20
"""What all of them may."""
PEER_SHARE: Final = 4
"""One connection may have the fourth part of all open local transactions, one client that of XA branches."""


class Gathered(Struct, eq=False):
    """A part, as it grows."""

    part: str
    topic: str
    queue_id: int
    waiting: bytes = b""
    """The next chunk, if it is complete."""
    waiting_rows: int = 0
    data: bytearray = field(default_factory=bytearray)
    """What came after that."""
    data_rows: int = 0
    chunks: int = 0
    """Chunks that are staged; `rows`, `bytes` and `crc` are theirs, as its seal says them."""
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
        """Make a chunk of what came, if none waits."""
        if not self.waiting and self.data:
            self.waiting, self.waiting_rows = bytes(self.data), self.data_rows
            self.data, self.data_rows = bytearray(), 0

    def chunk(self, *, seal: bool) -> Chunk:
        """The one that waits; `seal`: the last one."""
        return Chunk(
            part=self.part, number=self.chunks, topic=self.topic, queue_id=self.queue_id, body=self.waiting,
            seal=self.seal if seal else None, of_partition=True,
        )  # fmt: skip

    @property
    def seal(self) -> Seal:
        """The part's seal if it ends with the chunk that waits, or with those that are staged."""
        if not self.waiting:
            return Seal(self.chunks, self.rows, self.bytes, self.crc)
        crc = part_crc(self.crc, chunk_crc(self.waiting))
        return Seal(self.chunks + 1, self.rows + self.waiting_rows, self.bytes + len(self.waiting), crc)

    def staged(self) -> None:
        """The chunk that waited is in the log."""
        seal = self.seal
        self.chunks, self.rows, self.bytes, self.crc = seal.chunks, seal.rows, seal.bytes, seal.crc
        self.waiting, self.waiting_rows = b"", 0

    def manifest(self, broker: str) -> ManifestPart:
        """What a decision says of the part."""
        return ManifestPart(broker, self.part, self.topic, self.queue_id, self.seal)


class Branch(Struct, eq=False):
    """A transaction that is open."""

    key: TransactionKey
    id: str
    """Among the staged transactions."""
    channel: Channel
    """Which began it; and with which it ends, if it is a local one."""
    local: bool
    since_ms: int
    born_host: bytes = b""
    """Address of whoever put the first message."""
    deadline: float | None = None
    timed: bool = False
    """The deadline is the client's."""
    parts: dict[tuple[str, int], Gathered] = field(default_factory=dict)
    held: int = 0
    """Bytes in memory."""
    staged: bool = False
    """Something of it may be in the log."""

    @property
    def messages(self) -> int:
        return sum([part.rows_all for part in self.parts.values()])

    @property
    def bytes(self) -> int:
        return sum([part.bytes_all for part in self.parts.values()])

    @property
    def state(self) -> BranchState:
        """How tools see it."""
        return BranchState(
            str(self.key), BranchPhase.OPEN, self.id, self.channel.remote, self.since_ms, self.messages, self.bytes
        )


def entry_of(entry: PartitionEntry, cluster: str) -> bytes:
    """A message as it stands in a chunk. Raises Refused ILLEGAL_MESSAGE: its properties are too long."""
    pairs = {name: value for name, value in entry.properties.items() if name != props.CLUSTER}  # its copy gets it
    text = props.join(pairs).encode()
    limit = props.PROPERTIES_BYTES_MAX - len(cluster.encode()) - len(props.CLUSTER) - 2
    if len(text) > limit:
        raise Refused(
            Reason.ILLEGAL_MESSAGE,
            f"a message for topic {entry.topic} has {len(text)} bytes of properties, the limit is {limit}",
        )
    return encode_batch([(entry.flag, entry.body, text)])


class Memory:
    """How much is gathered, of each connection and over all."""

    def __init__(self) -> None:
        self.bytes = 0
        self._shares: dict[Channel, int] = {}
        self._branches: dict[str, Branch] = {}
        """Transactions that hold something, the longest holder first."""

    def share(self, channel: Channel) -> int:
        """Bytes that a connection's transactions hold."""
        return self._shares.get(channel, 0)

    def oldest(self, count: int) -> list[Branch]:
        """Up to `count` transactions that hold something, the longest holder first."""
        return list(itertools.islice(self._branches.values(), count))

    def postpone(self, branch: Branch) -> None:
        """Move a transaction that cannot hold less now behind the others."""
        if self._branches.pop(branch.id, None) is not None:
            self._branches[branch.id] = branch

    def add(self, branch: Branch, more: int) -> None:
        """A transaction holds so many bytes more, or fewer."""
        if not more:
            return
        branch.held += more
        self.bytes += more
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
    """Open transactions of one peer, or of all."""

    transactions: int = 0
    parts: int = 0
    """Their parts; each takes memory, however little is in it."""


class Counts:
    """How much is open, of each peer and over all.

    A peer is a connection for local transactions, and for XA branches, which outlive connections, whoever began them.
    """

    def __init__(self) -> None:
        self.all = Share()
        self._peers: dict[Channel | str, Share] = {}

    def of(self, channel: Channel, *, local: bool) -> Share:
        """What counts for the peer of such a transaction."""
        return self._peers.get(_peer(channel, local=local), Share())

    def check_transactions(self, limit: int, channel: Channel, *, local: bool) -> None:
        """Raises Refused BUSY: too many transactions are open for one more."""
        count, mine = self.all.transactions, self.of(channel, local=local).transactions
        if count >= limit or mine >= max(1, limit // PEER_SHARE):
            raise Refused(
                Reason.BUSY,
                f"{count} transactions are open, {mine} of them {_of_this(local=local)}; the limits are {limit} "
                f"(stagedPartsMax) and {max(1, limit // PEER_SHARE)}: commit or roll back some",
            )

    def check_parts(self, limit: int, branch: Branch) -> None:
        """Raises Refused BUSY: open transactions have too many parts for one more."""
        count, mine = self.all.parts, self.of(branch.channel, local=branch.local).parts
        if count >= limit or mine >= max(1, limit // PEER_SHARE):
            raise Refused(
                Reason.BUSY,
                f"there are messages for {count} partitions in open transactions, counted in each, {mine} "
                f"{_of_this(local=branch.local)}; the limits are {limit} (stagedPartsMax) and {max(1, limit // PEER_SHARE)}: "
                "commit or roll back some",
            )

    def add(self, branch: Branch, transactions: int, parts: int) -> None:
        """Count transactions and parts that were opened, or, below 0, that are gone."""
        peer = _peer(branch.channel, local=branch.local)
        share = self._peers.setdefault(peer, Share())
        for one in (self.all, share):
            one.transactions += transactions
            one.parts += parts
        if not share.transactions:
            del self._peers[peer]


def _peer(channel: Channel, *, local: bool) -> Channel | str:
    return channel if local else channel.caller.identity or channel.caller.address


def _of_this(*, local: bool) -> str:
    return "local ones of this connection" if local else "branches of this client"
