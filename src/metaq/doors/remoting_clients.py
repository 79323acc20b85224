"""Clients come, say what they want and go: heartbeats, goodbyes, member lists and filter checks (34, 35, 38, 46)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metaq.broker.broker import Broker
from metaq.broker.members import Notice
from metaq.doors.dispatch import Handler, RemotingSession
from metaq.errors import BadRequest, Reason, Refused
from metaq.options import MIB
from metaq.saved import Saving
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, reply
from metaq.wire.extensions import OUR_MARK

HEARTBEAT_BYTES_MAX = 4 * MIB
"""What a heartbeat says is kept as long as its connection lives."""


class ClientHandlers:
    """Handlers of one broker. `notify` tells members that their group changed."""

    def __init__(self, broker: Broker, notify: Callable[[Iterable[Notice]], None]) -> None:
        self._broker, self._notify = broker, notify

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self._beat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_filter,
        }

    def _beat(self, session: RemotingSession, command: Command) -> Command:
        beat = None
        try:
            if len(command.body) > HEARTBEAT_BYTES_MAX:
                raise Refused(  # noqa: TRY301
                    Reason.INVALID, f"a heartbeat of {len(command.body)} bytes, the limit is {HEARTBEAT_BYTES_MAX}"
                )
            beat = bodies.heartbeat_of(command.body)
            notices, waiting = self._broker.beat(session, command.language, command.version, beat)
        except (BadRequest, Refused) as error:
            if beat is not None:
                names = beat.client_id, [view.group for view in beat.consumers]
            else:
                names = (
                    bodies.heartbeat_names_of(command.body) if len(command.body) <= HEARTBEAT_BYTES_MAX else ("", [])
                )
            self._broker.members.refused(session.remote, *names, error)
            raise
        self._notify(notices)
        if waiting:
            raise Saving(*waiting)
        return reply(command, 0, OUR_MARK)

    def _unregister(self, session: RemotingSession, command: Command) -> Command:
        session.parked.in_turn()  # a heartbeat before it must not join the groups that this leaves
        header = headers.UnregisterClientHeader.from_ext(command.ext)
        self._notify(self._broker.members.unregister(session, header.producer_group, header.consumer_group))
        return reply(command)

    def _members(self, _session: RemotingSession, command: Command) -> Command:
        group = headers.ConsumerGroupHeader.from_ext(command.ext).consumer_group
        client_ids = self._broker.members.client_ids(group)
        if not client_ids:
            raise Refused(Reason.INVALID, f"no consumer for this group, {group}")
        return reply(command, body=bodies.consumer_ids(client_ids))

    def _check_filter(self, _session: RemotingSession, command: Command) -> Command:
        """A consumer asks before it starts whether its filter will work. Tags always do."""
        _, _, wanted = bodies.client_check_of(command.body)
        if wanted.expression_type not in ("TAG", ""):
            raise Refused(
                Reason.INVALID, f"The broker does not support consumer to filter message by {wanted.expression_type}"
            )
        return reply(command)
