"""The part of `Admin` about brokers, topics and groups in figures."""

from __future__ import annotations

from metaq.admin import brokers, groups, log_lines
from metaq.admin.figures import activity, group_list, metaq1, topic_figures
from metaq.admin.parts import AdminPart
from metaq.model.servers.log_line import LogLine


class FigureCalls(AdminPart):
    """Methods of `Admin`, which raise what it says, too."""

    def list_brokers(self) -> list[brokers.BrokerStatus]:
        """Return the status of all brokers of all clusters, by cluster, name and id; one that does not answer has an `error`."""
        return self._run(brokers.statuses(self._open))

    def topic_stats(self, name: str) -> topic_figures.TopicFigures:
        """Return per queue of a topic bounds, bytes and last message, and the groups that read it. Raises also TopicNotFound."""
        return self._run(topic_figures.figures_of(self._open, name))

    def list_groups(self, *, system: bool = False) -> list[groups.GroupProgress]:
        """Return members and progress of every consumer group, by name; `system` adds those of brokers themselves."""
        return self._run(group_list.all_groups(self._open, system=system))

    def group_names(self, *, system: bool = False) -> list[str]:
        """Return the names of the consumer groups, also of those that nobody has been in yet; `system` adds those of brokers."""
        return self._run(group_list.names(self._open, system=system))

    def activity(self, before: activity.Activity | None = None) -> activity.Activity:
        """Return what all brokers, topics and groups do at this moment, by some requests to each broker.

        The first look asks about up to 1024 topics and groups one by one, each further one about 64 of them.

        Args: before: the look before this one: its figures stand for what is not asked about again, and a broker that has gone
        since is still told of, with its error.
        """
        return self._run(activity.activity(self._open, before))

    def broker_log(self, broker: str, *, count: int = log_lines.COUNT, level: str = "INFO") -> list[LogLine] | None:
        """Return the last lines of a broker's log, the oldest first; None: a RocketMQ, or an earlier one of ours.

        Args:
            broker: its name (the master), or `host:port`.
            count: most lines, 1 to 500.
            level: of at least this: DEBUG, INFO, WARNING, ERROR or CRITICAL.

        Each line has `at_ms`, `level`, `logger` and `text`. Raises also BrokerNotFound; ConfigError: there is no such
        level, or `count` is out of bounds.
        """
        return self._run(log_lines.last(self._open, broker, count=count, level=level))

    def metaq1_stats(self, address: str, topic: str | None = None) -> metaq1.Metaq1Figures | None:
        """Return what a server of MetaQ 1.x, also the original, tells of itself: of a topic or of all; None: it has no such topic.

        Args: address: `host:port` of its text protocol; name servers are not asked. topic: only that one; None: all.
        Returns: `broker`, figure → value; `topics`; `traffic`, kind → recent events, None: nothing is counted.
        Raises also ConfigError: no address or no topic; RemoteProtocolError: what listens there answers otherwise.
        """
        return self._run(metaq1.figures_of(address, topic))
