"""Cleaning by hand (306, 316, 329, 30024), and trims of topics (30023)."""

from __future__ import annotations

import logging

from msgspec import structs

from metaq.broker.broker import Broker
from metaq.broker.trimming import ReadByMetaq1
from metaq.errors import BadRequest
from metaq.in_pieces import InPieces
from metaq.model.access import Action
from metaq.servers.remoting.administration.later import answer_when_done
from metaq.servers.remoting.handlers import Answer, Call, Later, NoHeader, handles
from metaq.wire import extensions, headers
from metaq.wire.codes import RequestCode

log = logging.getLogger(__name__)


class CleaningHandlers:
    """Handlers of one broker. Answers to RocketMQ's codes have no body: its tools only want to know that it is done."""

    def __init__(self, broker: Broker) -> None:
        self._cleaning, self._trimming = broker.cleaning, broker.trimming

    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG, NoHeader, Action.ADMINISTER)
    def _expired_files(self, call: Call[NoHeader]) -> Later:
        log.info("%s has expired log files deleted", call.session.remote)
        return answer_when_done(call, self._cleaning.expired_files(), lambda _files: None)

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, NoHeader, Action.ADMINISTER)
    def _expired_units(self, call: Call[NoHeader]) -> Later:
        log.info("%s has expired units of queues deleted", call.session.remote)
        return answer_when_done(call, self._cleaning.expired_units(), lambda _files: None)

    @handles(RequestCode.CLEAN_UNUSED_TOPIC, NoHeader, Action.ADMINISTER)
    def _unused_topics(self, call: Call[NoHeader]) -> Later:
        log.info("%s has queues without a topic deleted", call.session.remote)
        return answer_when_done(call, self._cleaning.unused_topics(), lambda _names: None)

    @handles(RequestCode.PREVIEW_CLEANING, NoHeader, Action.ADMINISTER)
    def _preview(self, call: Call[NoHeader]) -> Later:
        return answer_when_done(call, self._cleaning.preview(), extensions.cleanable)

    @handles(RequestCode.TRIM_TOPIC, headers.TrimTopicHeader, Action.ADMINISTER)
    def _trim(self, call: Call[headers.TrimTopicHeader]) -> InPieces[Answer]:
        header = call.header
        # By force nobody's progress counts, and ZooKeeper may be away.
        return self._trim_in_pieces(call, {} if header.force else self._trimming.read_by_metaq1(header.topic))

    def _trim_in_pieces(self, call: Call[headers.TrimTopicHeader], read: ReadByMetaq1) -> InPieces[Answer]:
        header, trimming = call.header, self._trimming
        topic = header.topic
        if header.before is not None and header.offset is None and header.queue_id is None:
            plan, floors = yield from trimming.plan_before(topic, header.before, read)
        elif header.offset is not None and header.before is None:
            plan, floors = yield from trimming.plan_offsets(topic, header.offset, header.queue_id, read)
        else:
            raise BadRequest(
                f"a trim of topic {topic} needs `before`, or `offset` with or without `queueId`: there are {header!r}"
            )
        if header.dry_run or (plan.unread and not header.force):
            return extensions.topic_trim(plan)
        log.info(
            "%s has topic %s trimmed: %d messages in %d queues go",
            call.session.remote, topic, sum(one.messages for one in plan.queues),
            sum(one.messages > 0 for one in plan.queues),
        )  # fmt: skip
        done = extensions.topic_trim(structs.replace(plan, done=True))
        return answer_when_done(call, trimming.carry_out(topic, floors), lambda _nothing: done)
