"""Clients: heartbeats, unregistration, member lists, filter checks (34, 35, 38, 46), and locks of orderly consumers
(41, 42)."""

from __future__ import annotations

from metaq.broker.broker import Broker
from metaq.broker.pulls.locks import QUEUES_MAX
from metaq.broker.pulls.predicates import no_classes
from metaq.broker.tables.members import SETS_MAX
from metaq.errors import BadRequest, Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model import QueueLocks
from metaq.model.access import Action
from metaq.model.filters.predicates import PREDICATE
from metaq.options import MIB
from metaq.servers.remoting.handlers import Answer, Call, NoHeader, Reply, handles
from metaq.servers.remoting.session import session_of
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.extensions import OUR_MARK

HEARTBEAT_BYTES_MAX = 2 * MIB
"""Largest heartbeat: its content is kept as long as its connection lives."""
HEARTBEAT_LIMITS = bodies.HeartbeatLimits(SETS_MAX, SETS_MAX, subscriptions=4096)
LOCK_BYTES_MAX = MIB
"""Largest list of queues to lock, some 5 000 with the longest names."""


class ClientHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @handles(RequestCode.HEART_BEAT, NoHeader, Action.SUBSCRIBE)
    def _beat(self, call: Call[NoHeader]) -> InPieces[Answer]:
        beat, size = None, len(call.body)
        try:
            if size > HEARTBEAT_BYTES_MAX:
                raise Refused(  # noqa: TRY301
                    Reason.INVALID, f"a heartbeat of {size} bytes, the limit is {HEARTBEAT_BYTES_MAX}"
                )
            beat = yield from bodies.heartbeat_in_pieces(call.body, HEARTBEAT_LIMITS)
            session = session_of(call)
            session.client_id = beat.client_id
            session.metering.named(beat.client_id)
            yield from self._broker.beat_in_pieces(session_of(call), call.language, call.version, beat, call.caller)
        except (BadRequest, Refused) as error:
            # The broker's log is to name the client and its groups, also when the rest of the heartbeat cannot be read:
            # RocketMQ's clients show their users nothing.
            if beat is not None:
                names = beat.client_id, [view.group for view in beat.consumers]
            else:
                names = bodies.heartbeat_names_of(call.body) if size <= HEARTBEAT_BYTES_MAX else ("", [])
            self._broker.members.refused(call.session.remote, *names, error)
            raise
        return Reply(OUR_MARK)  # RocketMQ's clients ignore the field

    @handles(RequestCode.UNREGISTER_CLIENT, headers.UnregisterClientHeader, Action.SUBSCRIBE)
    def _unregister(self, call: Call[headers.UnregisterClientHeader]) -> None:
        call.session.parked.in_turn()  # a heartbeat before it must not join the groups that this leaves
        header = call.header
        self._broker.unregister(session_of(call), header.producer_group, header.consumer_group)

    @handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP, headers.ConsumerGroupHeader, Action.OBSERVE)
    def _members(self, call: Call[headers.ConsumerGroupHeader]) -> bytes:
        group = call.header.consumer_group
        # Clients sort the list themselves before they share the queues out, so its order does not matter.
        client_ids = self._broker.members.client_ids(group)
        # Code 1 and text as RocketMQ has them.
        if not client_ids:
            raise Refused(Reason.INVALID, f"no consumer for this group, {group}")
        return bodies.consumer_ids(client_ids)

    @handles(RequestCode.LOCK_BATCH_MQ, NoHeader, Action.SUBSCRIBE)
    def _lock(self, call: Call[NoHeader]) -> InPieces[Answer]:
        wanted = yield from _locks_of(call)
        granted = yield from self._broker.locks.lock_in_pieces(call.caller, wanted)
        return bodies.locked_queues(granted)

    @handles(RequestCode.UNLOCK_BATCH_MQ, NoHeader, Action.SUBSCRIBE)
    def _unlock(self, call: Call[NoHeader]) -> InPieces[Answer]:
        call.session.parked.in_turn()  # a lock before it that waits must not come back after it
        held = yield from _locks_of(call)
        self._broker.locks.unlock(call.caller, held)
        return None

    @handles(RequestCode.CHECK_CLIENT_CONFIG, NoHeader, Action.OBSERVE)
    def _check_filter(self, call: Call[NoHeader]) -> None:
        """Check a consumer's filter before it starts. Java asks for filters other than by tags, and does not start on
        an error."""
        _, _, wanted = bodies.client_check_of(call.body)
        self._broker.filters.check(wanted, call.caller.client)
        # Predicates are checked where they run: an unknown name must fail the consumer's start, not its first pull.
        if wanted.expression_type == PREDICATE:
            self._broker.predicates.check(wanted.expression)

    # Java class filters of RocketMQ 3.x and 4.x: refused with a text that names the alternative, instead of "not
    # supported".
    @handles(RequestCode.REGISTER_FILTER_SERVER, NoHeader, Action.OBSERVE)
    def _filter_server(self, call: Call[NoHeader]) -> None:  # noqa: ARG002  whatever it says
        raise Refused(Reason.INVALID, no_classes(self._broker.predicates))

    @handles(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, NoHeader, Action.OBSERVE)
    def _filter_class(self, call: Call[NoHeader]) -> None:  # noqa: ARG002  whatever it says
        raise Refused(Reason.INVALID, no_classes(self._broker.predicates))


def _locks_of(call: Call[NoHeader]) -> InPieces[QueueLocks]:
    if len(call.body) > LOCK_BYTES_MAX:
        raise Refused(Reason.INVALID, f"a list of queues of {len(call.body)} bytes, the limit is {LOCK_BYTES_MAX}")
    return bodies.queue_locks_in_pieces(call.body, QUEUES_MAX)
