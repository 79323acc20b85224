"""The last lines of the log (30026)."""

from __future__ import annotations

import logging

from metaq.broker.gatekeeper import Gatekeeper
from metaq.errors import BadRequest
from metaq.model.access import Action
from metaq.servers.log_lines import LINES_MAX, LastLines
from metaq.servers.remoting.handlers import Call, handles
from metaq.wire import extensions, headers
from metaq.wire.codes import RequestCode


class LogHandlers:
    """The handler of one broker. Args: gatekeeper: of the broker. lines: of its process."""

    def __init__(self, gatekeeper: Gatekeeper, lines: LastLines) -> None:
        self._gatekeeper, self._lines = gatekeeper, lines

    @handles(RequestCode.LOG_LINES, headers.LogLinesHeader, Action.ADMINISTER)
    def _last(self, call: Call[headers.LogLinesHeader]) -> bytes:
        self._gatekeeper.check_administration(call.caller, "the log of the broker")
        level = logging.getLevelNamesMapping().get(call.header.level.upper())
        if level is None:
            raise BadRequest(f"there is no level {call.header.level[:50]!r}: DEBUG, INFO, WARNING, ERROR or CRITICAL")
        if not 1 <= call.header.count <= LINES_MAX:
            raise BadRequest(f"{call.header.count} lines: need 1 to {LINES_MAX}")
        return extensions.log_lines(self._lines.last(call.header.count, level))
