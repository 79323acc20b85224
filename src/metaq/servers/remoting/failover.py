"""A follower's request to be counted in its leader's in-sync set (30027, ours: docs/failover-protocol.md)."""

from __future__ import annotations

from metaq.broker.broker import Broker
from metaq.errors import Reason, Refused
from metaq.model.access import Action
from metaq.model.failover import Place
from metaq.servers.remoting.handlers import Call, Reply, handles
from metaq.wire import headers
from metaq.wire.codes import RequestCode


class FailoverHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @handles(RequestCode.JOIN_IN_SYNC, headers.JoinInSyncHeader, Action.OBSERVE)
    def _join(self, call: Call[headers.JoinInSyncHeader]) -> Reply:
        broker, header = self._broker, call.header
        if broker.in_sync is None:
            raise Refused(Reason.INVALID, f"{broker.environment.name} has no failover (option failover)")
        broker.slave_admission.prove(call.caller)
        if why := broker.slave_admission.why_not(call.caller.address):
            raise Refused(Reason.DENIED, why)
        ticket = broker.in_sync.ticket(Place(header.member, header.store), header.epoch)
        return Reply(headers.JoinInSyncReply(ticket=ticket, log_end=broker.store.log.end))
