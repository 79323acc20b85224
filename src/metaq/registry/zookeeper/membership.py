"""What a consumer writes in ZooKeeper: its own node, and nodes of the partitions that it has. Blocks.

Consumers of one session factory share a session: a node of a partition is ours if the session and the text are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from metaq.registry.zookeeper.layout import Layout, parents
from metaq.registry.zookeeper.session import Session

_VANISHING: Final = 3
"""Tries to make a node that is there whenever we make it and gone whenever we look."""


class Claimed(Struct, frozen=True):
    """What became of nodes that were to be made."""

    gained: list[str]
    borrowed: list[str]
    """With our text, and kept by a session that is not ours."""
    blocked: dict[str, str]
    """Node → its text: another consumer has it."""


def join(
    session: Session, layout: Layout, group: str, name: str, topics: Sequence[str], formers: Collection[int]
) -> int:
    """Make a consumer's own node, or find it there. Return the session that keeps it; `session.id`: it is ours.

    A node of another session is watched.

    Args: formers: sessions that were ours; a node of theirs is replaced.
    Raises one of `metaq.registry.zookeeper.session.Failures`.
    """
    path, text = layout.member(group, name), ",".join(topics)
    while session.create({path: text}):
        found = session.owners([path], watch=True).get(path)
        if found is None:  # gone since
            continue
        owner = found[0]
        if owner in formers:
            session.replace(path, text)
            break
        return owner
    return session.id


def claim(session: Session, paths: Collection[str], name: str, formers: Collection[int], *, shared: bool) -> Claimed:
    """Make nodes of partitions, with this consumer's name. Nodes of others are watched.

    Args:
        formers: sessions that were ours; nodes of theirs are replaced.
        shared: nodes of another session with our name count as ours, as for Java's clients: two processes have this name.

    Raises one of `Failures`: some may be made.
    """
    claimed = Claimed([], [], {})
    left = list(paths)
    # Else each node of a new topic would be tried in vain first.
    session.ensure(dict.fromkeys(parent for path in left for parent in parents(path)))
    for _ in range(_VANISHING):
        taken = session.create(dict.fromkeys(left, name))
        refused = set(taken)
        claimed.gained.extend(path for path in left if path not in refused)
        owners = session.owners(taken, watch=True)
        for path, (owner, text) in owners.items():
            if text != name:
                claimed.blocked[path] = text
            elif owner == session.id:
                claimed.gained.append(path)
            elif owner in formers:
                session.replace(path, name)
                claimed.gained.append(path)
            elif shared:
                claimed.borrowed.append(path)
            else:
                claimed.blocked[path] = text
        left = [path for path in taken if path not in owners]
        if not left:
            break
    claimed.blocked.update(dict.fromkeys(left, ""))
    return claimed


def release(session: Session, paths: Collection[str], name: str, *, sure: bool) -> None:
    """Delete nodes of partitions.

    Args: sure: all are ours; else those that are not stay.
    Raises one of `Failures`: some may be deleted.
    """
    if not sure:
        paths = [path for path, owner in session.owners(paths).items() if owner == (session.id, name)]
    session.delete(paths)


def leave(session: Session, layout: Layout, group: str, name: str, paths: Collection[str]) -> None:
    """Delete a consumer's nodes of partitions, then its own, as far as they are ours. Raises one of `Failures`."""
    release(session, paths, name, sure=False)
    own = layout.member(group, name)
    session.delete(path for path, (owner, _) in session.owners([own]).items() if owner == session.id)
