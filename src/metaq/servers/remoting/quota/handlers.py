"""Quotas: shown, set and removed (30018, 30019, ours)."""

from __future__ import annotations

import logging

from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.quota.service import Quotas
from metaq.errors import ConfigError, Reason, Refused
from metaq.model.access import Action
from metaq.model.quota import check_subject, parse_limits
from metaq.servers.remoting.handlers import After, Answer, Call, NoHeader, handles
from metaq.wire import extensions, headers
from metaq.wire.codes import RequestCode

log = logging.getLogger(__name__)


class QuotaHandlers:
    """Handlers of one server.

    Args: quotas: of the server. gatekeeper: without rules it takes changes from this machine only.
    """

    def __init__(self, quotas: Quotas, gatekeeper: Gatekeeper) -> None:
        self._quotas, self._gatekeeper = quotas, gatekeeper

    @handles(RequestCode.QUOTAS, NoHeader, Action.ADMINISTER)  # it names accounts and addresses: not for everybody
    def _show(self, call: Call[NoHeader]) -> bytes:
        self._gatekeeper.check_administration(call.caller, RequestCode.QUOTAS.name)
        return extensions.quotas(self._quotas.show())

    @handles(RequestCode.SET_QUOTA, headers.SetQuotaHeader, Action.ADMINISTER)
    def _set(self, call: Call[headers.SetQuotaHeader]) -> Answer:
        self._gatekeeper.check_administration(call.caller, RequestCode.SET_QUOTA.name)
        header = call.header
        try:
            subject = check_subject(header.kind, header.name)
            limits = parse_limits(header.limits, subject[0]) if header.limits is not None else None
        except ConfigError as error:
            raise Refused(Reason.INVALID, str(error)) from None
        log.info("%s sets the quota of the %s %s: %s", call.session.remote, header.kind, header.name, limits or "none")
        return After(self._quotas.remove(subject) if limits is None else self._quotas.set(subject, limits))
