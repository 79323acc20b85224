"""The part of `Admin` that changes leaders and restarts brokers while clients send."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metaq.admin.rolling import moving, restarting
from metaq.admin.rolling.standing import FailoverGroup, standings
from metaq.admin.upkeep.restarting import RestartCalls
from metaq.model.failover import NOBODY


class RollingCalls(RestartCalls):
    """Changes of leaders and restarts. `progress` is called in the thread of the client's event loop: it may not wait."""

    def list_groups_of_replicas(self, brokers: Sequence[str] | None = None) -> list[FailoverGroup]:
        """Return how groups with failover stand, those of these broker names or all: leader, in-sync set, lag. Others are left out.

        Each has `broker`, `leader` (its number, None: none), `address`, `epoch`, `in_sync` (numbers) and more. Raises also BrokerNotFound.
        """
        return self._run(standings(self._open, brokers))

    def move_leader(
        self,
        broker: str,
        *,
        to: int = NOBODY,
        timeout: float = moving.TIMEOUT_SECONDS,
        progress: Callable[[moving.HandOverProgress], None] = lambda _progress: None,
    ) -> moving.MovedLeader:
        """Have another member of a group with failover lead. No send fails: the one that led relays until clients know the new one.

        Args:
            broker: its name.
            to: member that is to lead; NOBODY: the one that is nearest.
            timeout: longest wait for it to lead, and to be registered at the name servers, seconds; 30 by default.
            progress: called with each look at how far it is; it may not wait.

        Returns: the members that led `before` and lead `after`; both are the same if that one led already.
        Raises also BrokerNotFound; ConfigError: it is no group with failover; NoSuchReplica: there is no such member;
        Refusal: it cannot lead, and nothing was changed; Unfinished: it does not lead in time.
        """
        return self._run(moving.move_leader(self._open, broker, to=to, timeout=timeout, progress=progress))

    def restart_cluster(
        self,
        brokers: Sequence[str] = (),
        *,
        cluster: str | None = None,
        by: restarting.By | None = None,
        anyway: bool = False,
        with_gaps: bool = False,
        quiet: float | None = None,
        timeout: float = restarting.TIMEOUT_SECONDS,
        progress: restarting.Told = lambda _progress: None,
    ) -> restarting.RestartedCluster:
        """Restart brokers one after the other, those that follow first; whoever leads hands over, and is restarted as a follower.

        Between two restarts the one before is back, has all that its leader has, and is in the in-sync set again.

        Args:
            brokers: names; by default all of the cluster.
            cluster: where name servers know several.
            by: restarts a process, in a thread; by default the broker does so itself.
            anyway: also if not all of them are well.
            with_gaps: also a master without a slave, and where fewer than `minInSyncReplicas` are left: sends to it are refused meanwhile.
            quiet: seconds without a request of a client that takes it for the leader, before one that has led is restarted.
            timeout: longest time for one broker to be back and in sync, seconds; 600 by default.
            progress: called with each look at how far it is; it may not wait.

        Returns: `restarted`, one entry for each process, with its `seconds`; `leaders`, broker → address, where that has changed.
        Raises also BrokerNotFound; ConfigError: several clusters, none named; Refusal: nothing was restarted;
        Unfinished: it has stopped where its text says.
        """
        work = restarting.restart_cluster(
            self._open,
            brokers,
            cluster=cluster,
            by=by,
            anyway=anyway,
            with_gaps=with_gaps,
            quiet=quiet,
            timeout=timeout,
            told=progress,
        )
        return self._run(work)
