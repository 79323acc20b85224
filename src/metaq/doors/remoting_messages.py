"""The slow lane of messages: sends, pulls, offsets, look-ups and messages that come back (10-12, 14, 15, 29-33, 36, 310, 320)."""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.broker import Broker
from metaq.broker.pull import Pull
from metaq.doors.dispatch import Handler, RemotingSession
from metaq.model.message import host_bytes
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, SerializeType, reply
from metaq.wire.hot import Replies


class MessageHandlers:
    """Handlers of one broker. `acks` takes the answers to sends, `pull` reads and answers a pull."""

    def __init__(self, broker: Broker, acks: Replies, pull: Callable[[Pull], None]) -> None:
        self._broker, self._acks, self._pull_one = broker, acks, pull

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self._send,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.QUERY_MESSAGE: self._query,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }

    # -- in
    def _send(self, session: RemotingSession, command: Command) -> Command | None:
        header = headers.SendHeader.from_ext(command.ext)
        host, port = session.peer.address
        born_host = host_bytes(host.partition("%")[0], port)
        sent = self._broker.sends.send(header, bytes(command.body), born_host, command.version)
        if command.is_oneway:
            return None
        binary = command.serialize is SerializeType.BINARY
        if sent.wait:
            self._acks.add_send(command.opaque, binary, sent.queue_id, sent.message_id, sent.put.queue_offset)
            return None
        options = self._broker.options
        answer = headers.SendReplyHeader(
            message_id=sent.message_id, queue_id=sent.queue_id, queue_offset=sent.put.queue_offset
        )
        trace = "true" if options.trace_on else "false"
        return reply(command, 0, {**answer.to_ext(), "MSG_REGION": options.region_id, "TRACE_ON": trace})

    def _send_back(self, _session: RemotingSession, command: Command) -> Command:
        self._broker.retries.send_back(headers.SendBackHeader.from_ext(command.ext), command.version)
        return reply(command)

    # -- out
    def _pull(self, session: RemotingSession, command: Command) -> Command | None:
        header = headers.PullHeader.from_ext(command.ext)
        if not command.is_oneway:
            reply_to = (command.opaque, command.serialize is SerializeType.BINARY)
            self._pull_one(self._broker.pulls.from_header(session, header, reply_to))
        return None

    def _query(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.QueryMessageHeader.from_ext(command.ext)
        found = self._broker.lookup.query(header)
        store = self._broker.store
        answer = headers.QueryMessageReplyHeader(
            index_last_update_ms=store.newest_ms, index_last_update_offset=store.indexed_log
        )
        return reply(command, 0, answer, body=b"".join(found))

    def _view(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.ViewMessageHeader.from_ext(command.ext)
        return reply(command, body=self._broker.lookup.record(header.offset))

    # -- offsets
    def _query_offset(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.QueryOffsetHeader.from_ext(command.ext)
        offset = self._broker.lookup.consumer_offset(header.group, header.topic, header.queue_id)
        return reply(command, 0, headers.OffsetReplyHeader(offset=offset))

    def _update_offset(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.UpdateOffsetHeader.from_ext(command.ext)
        self._broker.commit_offset(header.group, header.topic, header.queue_id, header.commit_offset)
        return reply(command)

    def _search_offset(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.SearchOffsetHeader.from_ext(command.ext)
        offset = self._broker.lookup.offset_at(header.topic, header.queue_id, header.timestamp)
        return reply(command, 0, headers.OffsetReplyHeader(offset=offset))

    def _max_offset(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.QueueHeader.from_ext(command.ext)
        offset = self._broker.lookup.max_offset(header.topic, header.queue_id)
        return reply(command, 0, headers.OffsetReplyHeader(offset=offset))

    def _min_offset(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.QueueHeader.from_ext(command.ext)
        offset = self._broker.lookup.min_offset(header.topic, header.queue_id)
        return reply(command, 0, headers.OffsetReplyHeader(offset=offset))

    def _earliest(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.QueueHeader.from_ext(command.ext)
        at = self._broker.lookup.earliest_time(header.topic, header.queue_id)
        return reply(command, 0, headers.TimestampReplyHeader(timestamp=at))
