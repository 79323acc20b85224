"""Fast path of pulls, answered by the compiled extension: admission by gates, and statistics and offsets taken over afterwards.

A pull that has passed all checks opens a gate for those like it. All gates are closed when a topic, a group, a subscription or
an option changes; then each pull is checked again.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.environment import Environment, Tables
from metaq.broker.pulls.admission import NEVER, Admission, Changes
from metaq.broker.requests import FILTER, PullRequest
from metaq.broker.stats import Stats
from metaq.model.access import Caller, CallerKind
from metaq.model.topics.route import MASTER_ID
from metaq.wire.hot import PullGate, PullPath

# With ACL rules, one for each account: clients may sign with any number of invented ones.
FAST_PATHS_MAX = 1000
GATES_SHARE = 16
"""Part of `peerBytesMax` that all gates may take (estimate): by default 35 000 to 45 000 of plain pulls."""
GATE_BYTES = 700
"""Memory of a gate beside its key and filter (estimate)."""
SUBSCRIPTION_BYTES_MAX = 1024
"""Longer filters in requests are not cached, bytes."""
_ANY_VERSION = (1 << 63) - 1


class PullFastPaths:
    """The fast paths of a broker, one for each kind of caller that the checks distinguish."""

    def __init__(self, environment: Environment, tables: Tables, stats: Stats, changes: Callable[[], Changes]) -> None:
        self._options, self._reader = environment.options, environment.store.reader
        self._offsets, self._closed_partitions = tables.offsets, tables.closed_partitions
        self._stats, self._changes = stats, changes
        self._fast_paths: dict[CallerKind, PullPath] = {}
        self._seen_changes = NEVER
        self._generation = self._gate_bytes = 0
        self.watched = False
        """Somebody watches each answer: there is no fast path then."""

    def close(self) -> None:
        """Close all fast paths after a change of options."""
        self._fast_paths.clear()
        self._gate_bytes = 0
        self._generation += 1

    def current(self) -> int | None:
        """Return the generation of open fast paths and gates; earlier ones are closed. None: the fast path is off for now."""
        changes = self._changes()
        if changes != self._seen_changes or len(self._fast_paths) > FAST_PATHS_MAX:
            self.close()
            self._seen_changes = changes
        # Closed partitions are rare, and the compiled extension does not know them.
        if self.watched or self._closed_partitions or not self._reader.pulls_are_plain():
            return None
        return self._generation

    def of(self, caller: Caller) -> PullPath | None:
        """Return the fast path for such a caller's plain pulls; None: the fast path is off for now."""
        # A pull that is to be measured takes the other way: here, nobody looks at the clock.
        if self.current() is None or self._stats.measuring_pull:
            return None
        fast_path = self._fast_paths.get(caller.kind)
        if fast_path is None:
            fast_path = self._fast_paths[caller.kind] = self._reader.pull_path()
        return fast_path

    def open(
        self, fast_path: PullPath, key: bytes, request: PullRequest, admission: Admission, seen: Changes
    ) -> PullGate | None:
        """Open a gate for pulls with this key, after one has passed the checks. Returns None if the pull is not plain.

        Args: seen: the change counters at the time of the checks.
        """
        brought = request.flags & FILTER != 0
        suggested = admission.group.broker_id if self._options.slave_read_enable else MASTER_ID  # never the slow broker
        if (
            admission.predicate
            or (admission.wanted is not None and admission.wanted.reads)
            or request.bytes_max > 0
            or suggested != MASTER_ID  # whether a slave is there, see `Redirect`, changes without notice
            or (not brought and request.version > admission.version)  # admitted with a weaker filter
            or (brought and len(request.subscription or b"") > SUBSCRIPTION_BYTES_MAX)
            # Something has changed since the checks: the gate would let pulls pass that the new state refuses.
            or seen != self._seen_changes
            or self._changes() != self._seen_changes
        ):
            return None
        gate = fast_path.gates.get(key)
        if gate is not None:
            return gate
        queue = self._reader.existing_queue(admission.topic, request.queue_id)
        if queue is None:
            return None
        # Emptied, not refused: gates in use come back with the next pull.
        if self._gate_bytes > self._options.peer_bytes_max // GATES_SHARE:
            for one in self._fast_paths.values():
                one.gates.clear()
            self._gate_bytes = 0
        self._gate_bytes += GATE_BYTES + 3 * len(key)
        gate = fast_path.gates[key] = PullGate(
            queue,
            admission.wanted,
            # A pull that brings its filter does not depend on the heartbeat's version.
            _ANY_VERSION if brought else admission.version,
            suggested,
            (admission.group.name, admission.topic, request.queue_id),
        )
        return gate

    def take_over(self, fast_path: PullPath) -> None:
        """Take over the statistics of pulls that a fast path has answered, and the offsets committed by them."""
        answered, moved = fast_path.take()
        for (group, topic, _), pulls, messages, size in answered:
            self._stats.got(group, topic, pulls, messages, size)
        for gate in moved:
            group, topic, queue_id = gate.owner
            self._offsets.put(group, topic, queue_id, gate.committed, pulled=True)
