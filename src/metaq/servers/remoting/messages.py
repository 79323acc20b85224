"""Slow path of sends, pulls, offsets, look-ups and messages that come back (10-12, 14, 15, 29-33, 36, 310, 320,
361)."""

from __future__ import annotations

from metaq.broker.broker import Broker
from metaq.broker.requests import KeyQuery, OffsetCommit, PullRequest, Send, SendBack
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model.access import Action
from metaq.model.message import host_bytes
from metaq.servers.record_access import check_record
from metaq.servers.remoting.handlers import LATER, Answer, Call, Later, Reply, handles
from metaq.servers.remoting.session import RETRY_LIMIT_VERSION, SENDS, session_of
from metaq.servers.remoting.workspace import Workspace
from metaq.wire import headers
from metaq.wire.codes import RequestCode

# Java 5.x's lite pull consumer sends 361 in place of 11.
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class MessageHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker, workspace: Workspace) -> None:
        self._broker, self._workspace = broker, workspace

    # -- in
    @handles(SENDS, headers.SendHeader, Action.PUBLISH)
    def _send(self, call: Call[headers.SendHeader]) -> Answer:
        host, port = call.session.peer.address
        sent = self._broker.sends.send(
            # A link-local IPv6 address has its zone behind `%`, which a record's born host has no room for.
            send_of(call.header, call.body, host_bytes(host.partition("%")[0], port), call.version, call.caller.client)
        )
        if call.oneway:
            return LATER
        # It leaves with the read event's other acks, which may have to wait for the disk or a replica.
        if sent.wait:
            self._workspace.acks.add_send(*call.reply_to, sent.queue_id, sent.message_id, sent.put.queue_offset)
            return LATER
        options = self._broker.options
        answer = headers.SendReplyHeader(
            message_id=sent.message_id, queue_id=sent.queue_id, queue_offset=sent.put.queue_offset
        )
        trace = "true" if options.trace_on else "false"
        # Java's client reads both from each answer, and crashes on one without ext fields.
        return Reply({**answer.to_ext(), "MSG_REGION": options.region_id, "TRACE_ON": trace})

    @handles(RequestCode.CONSUMER_SEND_MSG_BACK, headers.SendBackHeader, Action.SUBSCRIBE)
    def _send_back(self, call: Call[headers.SendBackHeader]) -> None:
        check_record(self._broker, call.caller, call.header.offset)  # the group gets a copy
        self._broker.retries.send_back(send_back_of(call.header, call.version, call.caller.client))

    # -- out
    @handles(PULLS, headers.PullHeader, Action.SUBSCRIBE)
    def _pull(self, call: Call[headers.PullHeader]) -> Later:
        # Nobody would read the messages, and holding such a pull would cost memory.
        if not call.oneway:
            session = session_of(call)
            session.pull_one(self._broker.pulls.make(session, call.caller, pull_of(call.header), call.reply_to))
        return LATER

    @handles(RequestCode.QUERY_MESSAGE, headers.QueryMessageHeader, Action.SUBSCRIBE)
    def _query(self, call: Call[headers.QueryMessageHeader]) -> InPieces[Answer]:
        header = call.header
        found = yield from self._broker.lookup.query(
            KeyQuery(
                topic=header.topic,
                key=header.key,
                count_max=header.max_messages,
                begin_ms=header.begin_ms,
                end_ms=header.end_ms,
                unique=header.unique_id_query,
            )
        )
        store = self._broker.store
        # Every record is indexed before its append returns: the log's newest store time is the index's, too.
        answer = headers.QueryMessageReplyHeader(
            index_last_update_ms=store.log.newest_ms, index_last_update_offset=store.reader.indexed_log
        )
        return Reply(answer, b"".join(found))

    @handles(RequestCode.VIEW_MESSAGE_BY_ID, headers.ViewMessageHeader, Action.SUBSCRIBE)
    def _view(self, call: Call[headers.ViewMessageHeader]) -> bytes:
        check_record(self._broker, call.caller, call.header.offset)
        return self._broker.lookup.record(call.header.offset)

    # -- offsets
    @handles(RequestCode.QUERY_CONSUMER_OFFSET, headers.QueryOffsetHeader, Action.SUBSCRIBE)
    def _query_offset(self, call: Call[headers.QueryOffsetHeader]) -> headers.OffsetReplyHeader:
        header = call.header
        offset = self._broker.lookup.consumer_offset(
            header.group, header.topic, header.queue_id, young_is_zero=header.zero_if_not_found is not False
        )
        if offset is None:
            where = f"{header.group}, {header.topic}:{header.queue_id}"
            # RocketMQ's text, and its code 22: Java's client takes it for "no offset yet" and begins as consumeFromWhere says.
            raise Refused(Reason.NOT_FOUND, f"Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first: {where}")
        return headers.OffsetReplyHeader(offset=offset)

    # Lower offsets are taken, too, as in RocketMQ: mqadmin's resetOffsetByTime moves offline groups back by it.
    @handles(RequestCode.UPDATE_CONSUMER_OFFSET, headers.UpdateOffsetHeader, Action.SUBSCRIBE)
    def _update_offset(self, call: Call[headers.UpdateOffsetHeader]) -> None:
        header = call.header
        self._broker.commit_offset(
            OffsetCommit(
                group=header.group,
                topic=header.topic,
                queue_id=header.queue_id,
                offset=header.commit_offset,
                client=call.caller.client,
                generation=header.generation,
                instead_of=header.instead_of,
            )
        )

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, headers.SearchOffsetHeader, Action.OBSERVE)
    def _search_offset(self, call: Call[headers.SearchOffsetHeader]) -> headers.OffsetReplyHeader:
        header = call.header
        return headers.OffsetReplyHeader(
            offset=self._broker.lookup.offset_at(header.topic, header.queue_id, header.timestamp)
        )

    @handles(RequestCode.GET_MAX_OFFSET, headers.QueueHeader, Action.OBSERVE)
    def _max_offset(self, call: Call[headers.QueueHeader]) -> headers.OffsetReplyHeader:
        return headers.OffsetReplyHeader(offset=self._broker.lookup.max_offset(call.header.topic, call.header.queue_id))

    @handles(RequestCode.GET_MIN_OFFSET, headers.QueueHeader, Action.OBSERVE)
    def _min_offset(self, call: Call[headers.QueueHeader]) -> headers.OffsetReplyHeader:
        header = call.header
        return headers.OffsetReplyHeader(
            offset=self._broker.lookup.min_offset(header.topic, header.queue_id),
            generation=self._broker.deletions.generation(header.topic) if header.wants_generation else None,
        )

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME, headers.QueueHeader, Action.OBSERVE)
    def _earliest(self, call: Call[headers.QueueHeader]) -> headers.TimestampReplyHeader:
        at = self._broker.lookup.earliest_time(call.header.topic, call.header.queue_id)
        return headers.TimestampReplyHeader(timestamp=at)


def send_of(header: headers.SendHeader, body: bytes, born_host: bytes, version: int, client: str = "") -> Send:
    """Return the request in a header of a client of `version`."""
    return Send(
        topic=header.topic,
        body=body,
        born_ms=header.born_ms,
        born_host=born_host,
        queue_id=header.queue_id,
        properties=header.properties,
        flag=header.flag,
        sys_flag=header.sys_flag,
        batch=header.batch,
        reconsume_times=header.reconsume_times,
        retries_max=_retries_max(header.max_reconsume_times, version),
        template=header.default_topic,
        template_queues=header.default_topic_queues,
        unit=header.unit_mode,
        producer_group=header.producer_group,
        client=client,
    )


def send_back_of(header: headers.SendBackHeader, version: int, client: str = "") -> SendBack:
    """Return the request in a header of a client of `version`."""
    return SendBack(
        group=header.group,
        log_offset=header.offset,
        delay_level=header.delay_level,
        retries_max=_retries_max(header.max_reconsume_times, version),
        repeated=bool(header.repeated),
        client=client,
    )


def _retries_max(said: int | None, version: int) -> int | None:
    # Before 3.4.9 clients fill the field without meaning it.
    return said if version >= RETRY_LIMIT_VERSION else None


def pull_of(header: headers.PullHeader) -> PullRequest:
    """Return the request in a header. Its flags are those of a `PullRequest`."""
    return PullRequest(
        group=header.group.encode("utf-8", "replace"),
        topic=header.topic.encode("utf-8", "replace"),
        queue_id=header.queue_id,
        offset=header.queue_offset,
        count_max=header.max_messages,
        flags=header.sys_flag,
        commit_offset=header.commit_offset,
        hold_ms=header.suspend_ms,
        subscription=None if header.subscription is None else header.subscription.encode("utf-8", "replace"),
        version=header.sub_version,
        expression_type=None if header.expression_type is None else header.expression_type.encode("utf-8", "replace"),
        bytes_max=header.max_msg_bytes or 0,
    )
