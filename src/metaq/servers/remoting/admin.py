"""Administration of a broker: topics, groups, figures (17, 21, 26, 28, 43, 45, 200-204, 207, 208, 215, 300, 305, 314).

Everybody who may connect may ask for these, as with RocketMQ. Reading the configuration file again (30007, ours) is for this
machine only, as long as there is no access control; so are changes of options (25, `administration.configuring`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from metaq.broker.broker import Broker
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model import TopicConfig
from metaq.model.access import Action
from metaq.model.servers.identity import ServerIdentity
from metaq.model.topics.topic import FILTER_TYPES, check_group, check_topic
from metaq.servers.remoting.administration.later import answer_when_done
from metaq.servers.remoting.handlers import LATER, After, Answer, Call, Later, NoHeader, Reply, handles
from metaq.servers.remoting.reports import runtime_table, settings_text
from metaq.servers.remoting.session import session_of
from metaq.wire import bodies, extensions, headers
from metaq.wire.codes import RequestCode

log = logging.getLogger(__name__)


class AdminHandlers:
    """Handlers of one broker.

    Args:
        broker: the services.
        after_registration: calls its argument once the name servers know the topics as they are. A new topic is
            confirmed only then, since a client that hears so asks for its route next.
    """

    def __init__(
        self,
        broker: Broker,
        after_registration: Callable[[Callable[[], None]], None],
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        """Args: connections: returns how many are open at this server."""
        self._broker, self._after_registration, self._connections = broker, after_registration, connections

    # -- topics
    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC, headers.CreateTopicHeader, Action.ADMINISTER)
    def _create_topic(self, call: Call[headers.CreateTopicHeader]) -> Answer:
        header = call.header
        if header.topic_filter_type not in FILTER_TYPES:
            raise Refused(
                Reason.INVALID, f"topicFilterType={header.topic_filter_type!r:.40}: need {' or '.join(FILTER_TYPES)}"
            )
        # The header's `order` is not taken over: RocketMQ 4.9.8 stores false whatever mqadmin sends.
        config = TopicConfig(
            header.topic,
            header.read_queues,
            header.write_queues,
            header.perm,
            header.topic_sys_flag,
            filter_type=header.topic_filter_type,
        )
        log.info("%s creates or changes the topic %s", call.session.remote, header.topic)

        def saved() -> Later:
            call.session.put_off(call.command)
            self._after_registration(lambda: call.answer(None))
            return LATER

        return After(self._broker.topics.update(config), saved)

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader, Action.ADMINISTER)
    def _delete_topic(self, call: Call[headers.TopicHeader]) -> Answer:
        topic = check_topic(call.header.topic)
        log.info("%s deletes the topic %s", call.session.remote, topic)
        return After(self._broker.delete_topic(topic))

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG, NoHeader, Action.OBSERVE)
    def _topics(self, _call: Call[NoHeader]) -> Answer:
        topics = self._broker.topics
        # A list now: what is told in pieces is the table as it was with this version.
        return bodies.topic_table(list(topics.table.items()), topics.version)

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoHeader, Action.OBSERVE)
    def _system_topics(self, _call: Call[NoHeader]) -> bytes:
        return bodies.topic_list(self._broker.topics.system_names())

    # -- groups
    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoHeader, Action.ADMINISTER)
    def _create_group(self, call: Call[NoHeader]) -> Answer:
        group = bodies.group_of(call.body)
        log.info("%s creates or changes the group %s", call.session.remote, group.name)
        return After(self._broker.groups.update(group))

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP, headers.DeleteGroupHeader, Action.ADMINISTER)
    def _delete_group(self, call: Call[headers.DeleteGroupHeader]) -> Answer:
        group = check_group(call.header.group)
        log.info("%s deletes the group %s", call.session.remote, group)
        return After(self._broker.delete_group(group, with_offsets=call.header.remove_offset))

    @handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NoHeader, Action.OBSERVE)
    def _groups(self, _call: Call[NoHeader]) -> Answer:
        groups = self._broker.groups
        return bodies.group_table(list(groups.table.items()), groups.version)

    @handles(RequestCode.GET_ALL_CONSUMER_OFFSET, NoHeader, Action.OBSERVE)
    def _offsets(self, _call: Call[NoHeader]) -> Answer:
        return bodies.group_offsets(list(self._broker.offsets.table.items()))

    @handles(RequestCode.GET_ALL_DELAY_OFFSET, NoHeader, Action.OBSERVE)
    def _delay_offsets(self, _call: Call[NoHeader]) -> bytes:
        return bodies.delay_offsets(self._broker.schedule.positions.offsets)

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, headers.ResetOffsetHeader, Action.ADMINISTER)
    def _reset_offsets(self, call: Call[headers.ResetOffsetHeader]) -> InPieces[Answer]:
        header = call.header
        log.info("%s moves group %s in topic %s", call.session.remote, header.group, header.topic)
        moved = yield from self._broker.reset_offsets(
            header.group, header.topic, header.timestamp, force=header.force, exact=bool(header.exact)
        )
        # RocketMQ makes a list for C++ callers, which cannot read its JSON with objects as keys.
        return bodies.queue_offset_list(moved) if call.language == "CPP" else bodies.queue_offsets(moved)

    @handles(RequestCode.CLONE_GROUP_OFFSET, headers.CloneOffsetsHeader, Action.ADMINISTER)
    def _clone_offsets(self, call: Call[headers.CloneOffsetsHeader]) -> InPieces[Answer]:
        header = call.header
        log.info(
            "%s copies the positions of group %.255s in %.127s to group %.255s",
            call.session.remote, header.source, header.topic or "all its topics", header.target,
        )  # fmt: skip
        saved = yield from self._broker.clone_offsets(
            header.source, header.target, header.topic or None, offline=header.offline
        )
        return After(saved)

    # -- configuration
    @handles(RequestCode.RELOAD, NoHeader, Action.ADMINISTER)
    def _reload(self, call: Call[NoHeader]) -> Answer:
        session = session_of(call)
        log.info("%s has the configuration read again", session.remote)
        asked = self._broker.reloading.ask(call.caller)
        return After(asked, lambda: extensions.reloaded(asked.outcome()))

    @handles(RequestCode.CLOSE_PARTITIONS, headers.ClosePartitionsHeader, Action.ADMINISTER)
    def _close_partitions(self, call: Call[headers.ClosePartitionsHeader]) -> bytes:
        if self._broker.metaq1 is None:
            raise Refused(Reason.INVALID, "this broker serves no clients of MetaQ 1.x: it has no partitions")
        header, partitions = call.header, self._broker.metaq1.partitions
        if header.first < 0 and header.last < 0:
            log.info("%s opens all partitions of the topic %s", call.session.remote, header.topic)
            partitions.open_partitions(header.topic)
        else:
            log.info(
                "%s closes partitions %d to %d of the topic %s",
                call.session.remote,
                header.first,
                header.last,
                header.topic,
            )
            partitions.close_partitions(header.topic, header.first, header.last)
        return extensions.closed_partitions(self._broker.closed_partitions.of(header.topic))

    # -- roles
    @handles(RequestCode.REPLICA_STATE, NoHeader, Action.OBSERVE)
    def _replica_state(self, call: Call[NoHeader]) -> bytes:
        self._broker.slave_admission.prove(call.caller)
        return extensions.replica_state(self._broker.roles.state())

    @handles(RequestCode.PROMOTE, headers.PromoteHeader, Action.ADMINISTER)
    def _promote(self, call: Call[headers.PromoteHeader]) -> Later:
        log.warning("%s promotes this broker%s", call.session.remote, " by force" if call.header.force else "")
        change = self._broker.roles.ask_to_lead(call.caller, call.header.role, force=call.header.force)
        return answer_when_done(call, change, extensions.replica_state)

    @handles(RequestCode.STEP_DOWN, headers.StepDownHeader, Action.ADMINISTER)
    def _step_down(self, call: Call[headers.StepDownHeader]) -> Later:
        log.warning("%s has this broker step down", call.session.remote)
        change = self._broker.roles.ask_to_follow(call.caller, call.header.broker_id, call.header.master)
        return answer_when_done(call, change, extensions.replica_state)

    @handles(RequestCode.STOP, NoHeader, Action.ADMINISTER)
    def _stop(self, call: Call[NoHeader]) -> None:
        log.warning("%s has this broker stop", call.session.remote)
        self._broker.stopping.ask(call.caller)

    @handles(RequestCode.RESTART_BROKER, NoHeader, Action.ADMINISTER)
    def _restart(self, call: Call[NoHeader]) -> None:
        log.warning("%s has this broker restart", call.session.remote)
        self._broker.restarting.ask(call.caller)

    # -- pieces of the log, for those who compare it with another replica's
    # Of all topics' messages, as the bytes below: with access control, only for accounts that administer.
    @handles(RequestCode.LOG_CHECKSUMS, headers.LogChecksumsHeader, Action.ADMINISTER)
    def _log_checksums(self, call: Call[headers.LogChecksumsHeader]) -> Later:
        self._broker.slave_admission.prove(call.caller)  # a slave may compare for long before it connects
        reading = self._broker.log_ranges.checksums(call.header.offset, call.header.stop)
        return answer_when_done(call, reading, extensions.log_checksums)

    @handles(RequestCode.LOG_BYTES, headers.LogBytesHeader, Action.ADMINISTER)
    def _log_bytes(self, call: Call[headers.LogBytesHeader]) -> Later:
        reading = self._broker.log_ranges.piece(call.header.offset, call.header.size)
        return answer_when_done(call, reading, bytes)

    @handles(RequestCode.REPAIR_LOG, headers.RepairLogHeader, Action.ADMINISTER)
    def _repair_log(self, call: Call[headers.RepairLogHeader]) -> Later:
        header = call.header
        log.warning(
            "%s has %d bytes of the log from offset %d on repaired from the broker at %s",
            call.session.remote, header.size, header.offset, header.source[:200],
        )  # fmt: skip
        mending = self._broker.repair_requests.ask(call.caller, header.offset, header.size, header.source)
        return answer_when_done(call, mending, extensions.mended)

    # -- who this is
    @handles(RequestCode.IDENTIFY, NoHeader, Action.OBSERVE, public=True)
    def _identify(self, call: Call[NoHeader]) -> bytes:
        environment = self._broker.environment
        now_ms, instance = environment.clock.now_ms(), environment.instance
        return extensions.server_identity(ServerIdentity(instance, now_ms, call.session.remote))

    # -- figures
    @handles(RequestCode.GET_BROKER_CONFIG, NoHeader, Action.OBSERVE)
    def _config(self, _call: Call[NoHeader]) -> Reply:
        # RocketMQ sends the topics' DataVersion as JSON text within one ext field.
        version = bodies.data_version(self._broker.topics.version).decode()
        return Reply(
            headers.VersionReplyHeader(version=version), settings_text(self._broker.reports.settings()).encode()
        )

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, NoHeader, Action.OBSERVE)
    def _runtime(self, _call: Call[NoHeader]) -> bytes:
        return bodies.kv_table(runtime_table(self._broker.reports.facts(), self._connections()))

    @handles(RequestCode.GET_TOPIC_STATS_INFO, headers.TopicHeader, Action.OBSERVE)
    def _topic_stats(self, call: Call[headers.TopicHeader]) -> Answer:
        return bodies.topic_stats(self._broker.reports.topic_stats(call.header.topic))

    @handles(RequestCode.GET_CONSUME_STATS, headers.ConsumeStatsHeader, Action.OBSERVE)
    def _consume_stats(self, call: Call[headers.ConsumeStatsHeader]) -> Answer:
        group, topic, reports = call.header.consumer_group, call.header.topic, self._broker.reports
        return bodies.consume_stats(reports.consume_stats(group, topic), reports.gets_per_second(group, topic))

    @handles(RequestCode.GET_CONSUMER_CONNECTION_LIST, headers.ConsumerGroupHeader, Action.OBSERVE)
    def _consumers(self, call: Call[headers.ConsumerGroupHeader]) -> bytes:
        return bodies.consumer_connections(*self._broker.reports.consumer(call.header.consumer_group))

    @handles(RequestCode.GET_PRODUCER_CONNECTION_LIST, headers.ProducerGroupHeader, Action.OBSERVE)
    def _producers(self, call: Call[headers.ProducerGroupHeader]) -> bytes:
        return bodies.producer_connections(self._broker.reports.producers(call.header.producer_group))

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.ReadersHeader, Action.OBSERVE)
    def _groups_of_topic(self, call: Call[headers.ReadersHeader]) -> bytes:
        if call.header.metaq1:
            return bodies.group_list(self._broker.reports.metaq1_groups())
        return bodies.group_list(self._broker.reports.groups_of(call.header.topic))
