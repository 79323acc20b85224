"""The part of `Admin` that changes a cluster's size while clients run."""

from __future__ import annotations

from collections.abc import Callable

from metaq.admin.growth import adding, drain, moving, removing
from metaq.admin.growth.places import BrokerReplicas
from metaq.admin.parts import AdminPart


class GrowthCalls(AdminPart):
    """Drain, add and remove brokers; move topics. Each method may be called again after a failure, and goes on then.

    `progress` is called about once a second, in the thread of the client's event loop: it may not wait. Closing the `Admin` ends a call
    that waits; what it has begun stays as it is.
    """

    def drain_broker(
        self,
        broker: str,
        *,
        quiet_seconds: float = drain.QUIET_SECONDS,
        timeout: float | None = None,
        force: bool = False,
        mend_order: bool = False,
        stop: bool = False,
        progress: Callable[[drain.DrainProgress], None] | None = None,
    ) -> drain.Drained:
        """Have producers leave a broker, and wait until its consumers, delays and transactions have done with it. No send fails.

        Args:
            broker: its name, or `host:port` of its master.
            quiet_seconds: returns not before no send has come for so long, 40 s by default.
            timeout: longest time, seconds; None: as long as it takes.
            force: also if a topic has no other broker that can be sent to.
            mend_order: take the broker out of the fixed layouts of strictly ordered topics.
            stop: stop its processes in the end.
            progress: called with each look at how far it is; it may not wait.

        Raises also BrokerNotFound, ConfigError; Refusal: nothing was changed; Unfinished: it is
        drained, and not empty in time.
        """
        return self._run(
            drain.drain(
                self._open, broker, quiet_seconds=quiet_seconds, timeout=timeout, force=force, mend_order=mend_order,
                stop=stop, told=progress,
            )
        )  # fmt: skip

    def undo_drain(self, broker: str) -> BrokerReplicas:
        """Have producers send to a broker again. Returns when the name servers say so: its name and addresses.

        Args: broker: its name, or `host:port` of its master. Raises also BrokerNotFound.
        """
        return self._run(drain.undo(self._open, broker))

    def add_broker(self, broker: str, *, like: str | None = None, dry_run: bool = False) -> adding.AddedBroker:
        """Give a new, running broker the topics and groups of its cluster.

        Args:
            broker: its name.
            like: the broker whose topics and groups it gets; None: those of all brokers of its cluster.
            dry_run: only say what it would get.

        Raises also BrokerNotFound; ConfigError: it is alone in its cluster, or `like` is itself; Refusal:
        it is being drained.
        """
        return self._run(adding.add(self._open, broker, like=like, dry_run=dry_run))

    def remove_broker(
        self,
        broker: str,
        *,
        quiet_seconds: float = drain.QUIET_SECONDS,
        timeout: float | None = None,
        force: bool = False,
        dry_run: bool = False,
        progress: Callable[[drain.DrainProgress], None] | None = None,
    ) -> removing.RemovedBroker:
        """Drain a broker, wait until it is empty, and stop it: its queues leave the routes.

        Args: force: leave behind what nobody has read. dry_run: only check whether that can begin, and say what is open there now. The
        others: as `drain_broker`. Raises: as `drain_broker`.
        """
        return self._run(
            removing.remove(
                self._open,
                broker,
                quiet_seconds=quiet_seconds,
                timeout=timeout,
                force=force,
                dry_run=dry_run,
                told=progress,
            )
        )

    def move_topic(
        self,
        topic: str,
        source: str,
        target: str,
        *,
        quiet_seconds: float = drain.QUIET_SECONDS,
        timeout: float | None = None,
        force: bool = False,
        dry_run: bool = False,
        progress: Callable[[moving.MoveProgress], None] | None = None,
    ) -> moving.MovedTopic:
        """Move a topic from one broker to another: new messages come there, and it is deleted here when groups have read the rest.

        Args: force: also if its order is fixed, and without waiting until groups have read the rest. dry_run: only say what would be
        done. The others: as `drain_broker`. Raises also TopicNotFound, and as `drain_broker`.
        """
        return self._run(
            moving.move(
                self._open, topic, source, target, quiet_seconds=quiet_seconds, timeout=timeout, force=force,
                dry_run=dry_run, told=progress,
            )
        )  # fmt: skip
