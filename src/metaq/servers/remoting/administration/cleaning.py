"""Cleaning by hand (306, 316, 329)."""

from __future__ import annotations

import logging

from metaq.broker.broker import Broker
from metaq.model.access import Action
from metaq.servers.remoting.administration.later import answer_when_done
from metaq.servers.remoting.handlers import Call, Later, NoHeader, handles
from metaq.wire.codes import RequestCode

log = logging.getLogger(__name__)


class CleaningHandlers:
    """Handlers of one broker. Answers have no body: RocketMQ's tools only want to know that it is done."""

    def __init__(self, broker: Broker) -> None:
        self._cleaning = broker.cleaning

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
