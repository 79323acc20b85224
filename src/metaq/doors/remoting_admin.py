"""Administration of a broker: topics, groups, figures (17, 21, 26, 28, 43, 45, 200-204, 207, 208, 215, 300, 305).

Everybody who may connect may ask for these, as with RocketMQ. Changing the configuration over the wire (25) is none of
them: it is answered like any unknown request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from metaq.broker.broker import Broker
from metaq.doors.dispatch import Handler, RemotingSession, when_saved
from metaq.errors import Reason, Refused
from metaq.model import TopicConfig
from metaq.model.topic import check_group, check_topic
from metaq.wire import bodies, fastjson, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, reply

log = logging.getLogger(__name__)

FILTER_TYPES = bodies.FILTER_TYPES


class AdminHandlers:
    """Handlers of one broker.

    `after_registration` calls its argument when the name servers know the topics as they are: a client that was told
    that its topic exists asks for the route next.
    """

    def __init__(self, broker: Broker, after_registration: Callable[[Callable[[], None]], None]) -> None:
        self._broker, self._after_registration = broker, after_registration

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._create_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._groups,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._delay_offsets,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            RequestCode.GET_TOPIC_STATS_INFO: self._topic_stats,
            RequestCode.GET_CONSUME_STATS: self._consume_stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
        }

    # -- topics
    def _create_topic(self, session: RemotingSession, command: Command) -> Command | None:
        header = headers.CreateTopicHeader.from_ext(command.ext)
        if header.topic_filter_type not in FILTER_TYPES:
            raise Refused(
                Reason.INVALID, f"topicFilterType={header.topic_filter_type!r:.40}: need {' or '.join(FILTER_TYPES)}"
            )
        config = TopicConfig(
            header.topic,
            header.read_queues,
            header.write_queues,
            header.perm,
            header.topic_sys_flag,
            filter_type=header.topic_filter_type,
        )
        log.info("%s creates or changes the topic %s", session.remote, header.topic)

        def saved() -> None:
            if not command.is_oneway:
                self._after_registration(lambda: session.send(reply(command)))

        return when_saved(self._broker.topics.update(config), saved)

    def _delete_topic(self, session: RemotingSession, command: Command) -> Command | None:
        topic = check_topic(headers.TopicHeader.from_ext(command.ext).topic)
        log.info("%s deletes the topic %s", session.remote, topic)
        return when_saved(self._broker.delete_topic(topic), lambda: reply(command))

    def _topics(self, _session: RemotingSession, command: Command) -> Command:
        return reply(command, body=fastjson.dumps(self._broker.topics.to_tree()))

    def _system_topics(self, _session: RemotingSession, command: Command) -> Command:
        return reply(command, body=bodies.topic_list(self._broker.topics.system_names()))

    # -- groups
    def _create_group(self, session: RemotingSession, command: Command) -> Command | None:
        group = bodies.group_of(command.body)
        log.info("%s creates or changes the group %s", session.remote, group.name)
        return when_saved(self._broker.groups.update(group), lambda: reply(command))

    def _delete_group(self, session: RemotingSession, command: Command) -> Command | None:
        header = headers.DeleteGroupHeader.from_ext(command.ext)
        log.info("%s deletes the group %s", session.remote, check_group(header.group))
        gone = self._broker.delete_group(header.group, with_offsets=header.remove_offset)
        return when_saved(gone, lambda: reply(command))

    def _groups(self, _session: RemotingSession, command: Command) -> Command:
        return reply(command, body=fastjson.dumps(self._broker.groups.to_tree()))

    def _offsets(self, _session: RemotingSession, command: Command) -> Command:
        return reply(command, body=fastjson.dumps_java(self._broker.offsets.to_tree()))

    def _delay_offsets(self, _session: RemotingSession, command: Command) -> Command:
        return reply(command, body=fastjson.dumps_java(self._broker.ladder.positions.to_tree()))

    # -- figures
    def _config(self, _session: RemotingSession, command: Command) -> Command:
        version = bodies.data_version(self._broker.topics.version).decode()
        answer = headers.VersionReplyHeader(version=version)
        return reply(command, 0, answer, body=self._broker.reports.configuration().encode())

    def _runtime(self, _session: RemotingSession, command: Command) -> Command:
        return reply(command, body=bodies.kv_table(self._broker.reports.runtime()))

    def _topic_stats(self, _session: RemotingSession, command: Command) -> Command:
        topic = headers.TopicHeader.from_ext(command.ext).topic
        return reply(command, body=bodies.topic_stats(self._broker.reports.topic_stats(topic)))

    def _consume_stats(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.ConsumeStatsHeader.from_ext(command.ext)
        stats = self._broker.reports.consume_stats(header.consumer_group, header.topic)
        return reply(command, body=bodies.consume_stats(stats, 0.0))

    def _consumers(self, _session: RemotingSession, command: Command) -> Command:
        group = headers.ConsumerGroupHeader.from_ext(command.ext).consumer_group
        return reply(command, body=bodies.consumer_connections(*self._broker.reports.consumer(group)))

    def _producers(self, _session: RemotingSession, command: Command) -> Command:
        group = headers.ProducerGroupHeader.from_ext(command.ext).producer_group
        return reply(command, body=bodies.producer_connections(self._broker.reports.producers(group)))

    def _groups_of_topic(self, _session: RemotingSession, command: Command) -> Command:
        topic = headers.TopicHeader.from_ext(command.ext).topic
        return reply(command, body=bodies.group_list(self._broker.reports.groups_of(topic)))
