"""Options that are changed while a broker runs (25)."""

from __future__ import annotations

import logging

from metaq.broker.broker import Broker
from metaq.model.access import Action
from metaq.servers.remoting.handlers import After, Answer, Call, NoHeader, handles
from metaq.wire import bodies
from metaq.wire.codes import RequestCode

log = logging.getLogger(__name__)


class ConfiguringHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @handles(RequestCode.UPDATE_BROKER_CONFIG, NoHeader, Action.ADMINISTER)
    def _change(self, call: Call[NoHeader]) -> Answer:
        pairs = bodies.option_changes_of(call.body)
        log.info("%s changes options: %.200s", call.session.remote, ", ".join(pairs))
        return After(self._broker.change_options(call.caller, pairs))
