"""Pulls that the compiled extension answers by itself: who may have them, and what is taken over from them afterwards.

A pull that found its way through all checks opens a gate for those like it. All gates are gone as soon as a topic, a
group, a subscription or an option changes; then each pull is judged anew, as the first one was.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.environment import Environment, Tables
from metaq.broker.pulls.admission import Admission
from metaq.broker.requests import FILTER, PullRequest
from metaq.broker.stats import Stats
from metaq.model.access import Caller, CallerKind
from metaq.wire.hot import PullGate, PullPath

Changes = tuple[int, int, int, int, int]
"""Counters of everything that may alter a decision about pulls."""
NEVER: Changes = (-1, -1, -1, -1, -1)
"""Before the first decision."""
FAST_PATHS_MAX = 1000
GATES_MAX = 100_000
"""Of one path."""
SUBSCRIPTION_BYTES_MAX = 1024
"""Longer filters that a request brings are not kept."""
_ANY_VERSION = (1 << 63) - 1


class PullFastPaths:
    """One path for each kind of client that the checks tell apart."""

    def __init__(self, environment: Environment, tables: Tables, stats: Stats, changes: Callable[[], Changes]) -> None:
        self._options, self._store = environment.options, environment.store
        self._offsets, self._closed_partitions = tables.offsets, tables.closed_partitions
        self._stats, self._changes = stats, changes
        self._fast_paths: dict[CallerKind, PullPath] = {}
        self._seen_changes = NEVER
        self._generation = 0

    def close(self) -> None:
        """Nothing that was plain is any more: an option has changed."""
        self._fast_paths.clear()
        self._generation += 1

    def current(self) -> int | None:
        """The generation of all paths and gates that are open; those of an earlier one are closed. None: none is for now."""
        changes = self._changes()
        if changes != self._seen_changes or len(self._fast_paths) > FAST_PATHS_MAX:
            self.close()
            self._seen_changes = changes
        if self._closed_partitions or not self._store.pulls_are_plain():
            return None
        return self._generation

    def of(self, caller: Caller) -> PullPath | None:
        """Where plain pulls of such a client are answered from. None: each needs a closer look for now."""
        if self.current() is None:
            return None
        fast_path = self._fast_paths.get(caller.kind)
        if fast_path is None:
            fast_path = self._fast_paths[caller.kind] = self._store.pull_path()
        return fast_path

    def open(
        self, fast_path: PullPath, key: bytes, request: PullRequest, admission: Admission, seen: Changes
    ) -> PullGate | None:
        """What `key` tells apart is plain from now on, if it can be: a pull of this path's clients has passed the checks, when
        `seen` was so. Returns its gate, None if this pull is not plain."""
        brought = request.flags & FILTER != 0
        if (
            admission.predicate
            or (admission.wanted is not None and admission.wanted.reads)
            or request.bytes_max > 0
            or (not brought and request.version > admission.version)  # it passed with less than the group's filter
            or (brought and len(request.subscription or b"") > SUBSCRIPTION_BYTES_MAX)
            or seen != self._seen_changes
            or self._changes() != self._seen_changes
        ):
            return None
        gate = fast_path.gates.get(key)
        if gate is not None:
            return gate
        queue = self._store.existing_queue(admission.topic, request.queue_id)
        if queue is None:
            return None
        if len(fast_path.gates) >= GATES_MAX:
            fast_path.gates.clear()
        gate = fast_path.gates[key] = PullGate(
            queue,
            admission.wanted,
            _ANY_VERSION if brought else admission.version,
            admission.group.broker_id if self._options.slave_read_enable else 0,  # what is plain is near
            (admission.group.name, admission.topic, request.queue_id),
        )
        return gate

    def take_over(self, fast_path: PullPath) -> None:
        """Count what a path has answered, and keep the positions that came with it."""
        pulls, messages, size, moved = fast_path.take()
        if pulls:
            self._stats.got_on_fast_path(pulls, messages, size)
        for gate in moved:
            group, topic, queue_id = gate.owner
            self._offsets.put(group, topic, queue_id, gate.committed)
