"""Allocation strategies: pure functions with which every member of a group computes its share of the queues.

A strategy gets all queues of a topic and all member ids, both in Java's order (`in_order`), and the member's own id;
it returns that member's share. If all members see the same lists, the shares are disjoint and complete; while they do
not, a queue may have no owner or two for a moment, and its messages are delivered late or twice, never lost. The
strategies give the same results as RocketMQ's AllocateMessageQueue classes, so members in Python and Java can share a
group; all members must use the same one.

The result of a user's strategy is checked (`checked_share`).
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.model import MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Iterable[MessageQueue]]

RING_NODES = 10
"""Virtual nodes of each member on the consistent-hash ring, as in Java."""
RETURNED_MORE_MAX = 1000
"""Bound of a strategy's result, beyond twice the number of queues."""
NAMED_MAX = 5
"""Queues named in one warning."""


def java_order(text: str) -> bytes:
    """Return a key that sorts as Java does: by UTF-16 code units, which differs from Python's order beyond U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def in_order(members: Iterable[str]) -> list[str]:
    """Return distinct member ids in the order in which all members sort them."""
    return sorted(set(members), key=java_order)


def queues_in_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return queues in the order in which all members sort them."""
    return sorted(queues, key=lambda queue: (java_order(queue.topic), java_order(queue.broker), queue.queue_id))


# ------------------------------------------------------------------ strategies


def average(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Neighbouring queues, the first members one more: 5 queues over 2 members are 3 and 2. RocketMQ's AVG."""
    index = _index(members, me)
    if index is None:
        return []
    # With more members than queues, `whole` is 0 and the surplus members get none, as in Java.
    whole, rest = divmod(len(queues), len(members))
    start = index * whole + min(index, rest)
    return list(queues[start : start + whole + (index < rest)])


def circle(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Queues dealt out one by one in a circle, like cards. RocketMQ's AVG_BY_CIRCLE."""
    index = _index(members, me)
    return [] if index is None else list(queues[index :: len(members)])


def consistent_hash(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """A queue goes to the next member on a ring of hashes, so that few queues move when a member comes or goes.

    RocketMQ's CONSISTENT_HASH with its 10 virtual nodes.
    """
    if _index(members, me) is None:
        return []
    # Of two nodes with one hash the later member's counts, as in Java's map.
    ring = {_ring_hash(f"{member}-{node}"): member for member in members for node in range(RING_NODES)}
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        # The text of Java's `MessageQueue.toString`: members in both languages must get the same hash.
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        return ring[places[bisect.bisect_left(places, _ring_hash(text)) % len(places)]]

    return [queue for queue in queues if owner(queue) == me]


class fixed:  # noqa: N801  used like the functions beside it
    """Always these queues, whoever else there is. RocketMQ's CONFIG; the user must see to it that shares are disjoint.

    It is the one strategy that need not depend on its arguments alone, so it is not asked for other members' shares.
    """

    def __init__(self, mine: Iterable[MessageQueue]) -> None:
        self.mine = frozenset(mine)

    def __call__(self, queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:  # noqa: ARG002  a Strategy
        return [queue for queue in queues if queue in self.mine]


def machine_room(rooms: Collection[str]) -> Strategy:
    """The queues of brokers named `ROOM@name` whose ROOM is one of `rooms`, shared as evenly as can be.

    RocketMQ's MACHINE_ROOM: the queues of other rooms, and of brokers named otherwise, have no owner in this group.
    """
    if isinstance(rooms, str) or not rooms:
        raise ConfigError(f"machine_room({rooms!r}): need a collection of machine-room names, at least one")
    wanted = frozenset(rooms)

    def here(queue: MessageQueue) -> bool:
        parts = queue.broker.split("@")
        while parts and not parts[-1]:  # Java's split leaves out empty parts at the end.
            parts.pop()
        return len(parts) == 2 and parts[0] in wanted

    def strategy(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        index = _index(members, me)
        if index is None:
            return []
        mine = [queue for queue in queues if here(queue)]
        whole, rest = divmod(len(mine), len(members))
        share = mine[whole * index : whole * (index + 1)]
        if index < rest:
            share.append(mine[whole * len(members) + index])
        return share

    return strategy


def machine_room_nearby(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_member: Callable[[str], str],
    within: str | Strategy = average,
) -> Strategy:
    """Queues go to members of their own machine room; those of rooms without members are spread over all.

    RocketMQ's MACHINE_ROOM_NEARBY. `within` shares out inside a room. A queue or member without a room raises
    ConfigError when the shares are computed: the member then keeps the queues that it has.
    """
    inner = strategy_of(within)

    def strategy(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        if _index(members, me) is None:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(_room(room_of_queue(queue), f"queue {queue}"), []).append(queue)
        members_of: dict[str, list[str]] = {}
        for member in members:
            members_of.setdefault(_room(room_of_member(member), f"member {member}"), []).append(member)
        home = _room(room_of_member(me), f"member {me}")
        share = list(inner(queues_of.pop(home, []), members_of[home], me))
        for room in sorted(queues_of.keys() - members_of.keys(), key=java_order):
            share += inner(queues_of[room], members, me)
        return share

    return strategy


def _room(room: object, whose: str) -> str:
    if not isinstance(room, str) or not room:
        raise ConfigError(f"the machine room of {whose} is {room!r}: need a name")
    return room


def _index(members: Sequence[str], me: str) -> int | None:
    """The index of a member; None: the broker does not list it yet, so it owns nothing."""
    return members.index(me) if me in members else None


def _ring_hash(text: str) -> int:
    # As RocketMQ's consistent hash: the first four bytes of the MD5, unsigned.
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


STRATEGIES: dict[str, Strategy] = {"average": average, "circle": circle, "consistent_hash": consistent_hash}
_OURS = frozenset(STRATEGIES.values())


def strategy_of(given: str | Strategy) -> Strategy:
    """A strategy by its name, or the callable given. Raises ConfigError that lists the names."""
    if callable(given):
        return given
    if given not in STRATEGIES:
        raise ConfigError(
            f"no allocation strategy is named {given!r}: there are {', '.join(STRATEGIES)}, or a callable, such as those "
            "that fixed, machine_room and machine_room_nearby of metaq.client.consumer.membership.rebalance make"
        )
    return STRATEGIES[given]


# ------------------------------------------------------------------ what a strategy of the user's returns


class Share(Struct, frozen=True):
    """A member's checked share, and the complaint about its strategy's result ("": none)."""

    queues: list[MessageQueue]
    wrong: str = ""


def checked_share(strategy: Strategy, queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> Share:
    """Compute a member's share by `strategy`, without queues that are not its own.

    Queues that are not among `queues` are left out, and of one returned twice the second. A strategy that is not ours is
    asked for the other members' shares as well: a queue in several shares is that member's whose id comes first, so that
    all members agree and it has one owner. Raises what the strategy raises; TypeError: it returned no queues.
    """
    returned = _returned(strategy, queues, members, me)
    # The shares of ours are disjoint by construction: no need to compute the other members'.
    if strategy in _OURS:
        return Share(returned)
    complaints, known = [], frozenset(queues)
    mine = [queue for queue in dict.fromkeys(returned) if queue in known]
    if unknown := [queue for queue in returned if queue not in known]:
        complaints.append(f"{len(unknown)} queues that are not among those to be shared ({_named(unknown)})")
    if len(mine) + len(unknown) < len(returned):
        twice = [queue for queue in mine if returned.count(queue) > 1]
        complaints.append(f"{len(twice)} queues twice ({_named(twice)})")
    if not isinstance(strategy, fixed):
        # Members before this one in the order win, for all members alike: so each contested queue has one owner.
        before = list(itertools.takewhile(lambda member: member != me, members))
        taken = {queue for member in before for queue in _returned(strategy, queues, members, member)}
        if others := [queue for queue in mine if queue in taken]:
            complaints.append(f"{len(others)} queues that it gives to another member as well ({_named(others)})")
            mine = [queue for queue in mine if queue not in taken]
    return Share(mine, " and ".join(complaints))


def _returned(
    strategy: Strategy, queues: Sequence[MessageQueue], members: Sequence[str], member: str
) -> list[MessageQueue]:
    # Bounded, because a user's generator may be endless.
    returned = list(itertools.islice(strategy(queues, members, member), 2 * len(queues) + RETURNED_MORE_MAX))
    if wrong := [one for one in returned if not isinstance(one, MessageQueue)]:
        raise TypeError(f"it returned {wrong[0]!r}, which is no MessageQueue")
    return returned


def _named(queues: Sequence[MessageQueue]) -> str:
    return ", ".join(map(str, queues[:NAMED_MAX])) + (", ..." if len(queues) > NAMED_MAX else "")
