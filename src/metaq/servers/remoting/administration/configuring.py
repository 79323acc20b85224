"""Options of a broker: changed while it runs (25), and shown with where they come from (30022)."""

from __future__ import annotations

import logging

from metaq.broker.broker import Broker
from metaq.model.access import Action
from metaq.servers.option_states import option_states
from metaq.servers.remoting.handlers import After, Answer, Call, NoHeader, handles
from metaq.servers.remoting.reports import found_out
from metaq.wire import bodies, extensions
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

    @handles(RequestCode.OPTIONS, NoHeader, Action.OBSERVE)
    def _options(self, _call: Call[NoHeader]) -> bytes:
        found = found_out(self._broker.reports.settings())
        return extensions.option_states(option_states(self._broker.all_settings, found))
