"""Retry policy of the client: whether, where and when a request may be repeated.

`judge` decides by the error's class and the broker's code, and by the request's purpose: a send refused by one broker may go to
another, a pull cannot; a group's member whose heartbeat is late repeats it, a reader has none. Callers only decide how long they
go on: a producer's `retries`, a number of seconds (`Patience`), or without limit (a consumer group).
"""

from __future__ import annotations

import enum

from msgspec import Struct

from metaq.errors import (
    AccessDenied,
    BadRequest,
    BrokerError,
    ConnectionFailed,
    MetaqError,
    NoRoute,
    RemoteProtocolError,
    RequestTimeout,
)
from metaq.wire.codes import ResponseCode
from metaq.wire.extensions import IN_DOUBT_MARK, NOT_LEADING_MARK


class Purpose(enum.Enum):
    """Purpose of a request."""

    LOOK_UP = enum.auto()
    """Routes, offsets, members. Read-only, so repeating is harmless."""
    COMMIT = enum.auto()
    """Offset commits and registrations. Idempotent: the last one counts."""
    READ = enum.auto()
    """A pull of a reader, which has no group."""
    SLICE = enum.auto()
    """A request of a Spark query, for planning or reading: repeated for some seconds, because the job fails otherwise."""
    PULL = enum.auto()
    """A pull of a group's member, which the broker must know by its heartbeat."""
    SEND = enum.auto()
    """Sends. A repetition stores a second copy if the first was stored and its response lost."""
    STAGED = enum.auto()
    """Staged transactions. Idempotent, and repeated also after FLUSH_DISK_TIMEOUT and FLUSH_SLAVE_TIMEOUT."""
    GIVE_BACK = enum.auto()
    """CONSUMER_SEND_MSG_BACK. Our brokers recognise a repetition; a RocketMQ broker stores the retry twice."""


class Judgement(Struct, frozen=True):
    """Decision on an error."""

    again: bool
    """Whether the request may be repeated. If not, the caller gets the error."""
    elsewhere: bool = False
    """Whether another peer may succeed; it can be asked at once."""
    pause: float = 0.0
    """Pause before repeating it at this peer, s."""
    only_busy: bool = False
    """Whether the peer is only busy: then waiting does not count as a try."""
    no_heartbeat: bool = False
    """Whether the broker does not know our subscription (yet), so a heartbeat must be sent first."""
    maybe_done: bool = False
    """Whether the peer may have executed the request nevertheless."""
    away: bool = False
    """Whether the peer has surely not executed it because it is away or does not lead: then a leader is waited for, which does not
    count as a try."""


_BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
_BUSY_OR_STARTING = _BUSY | {ResponseCode.SERVICE_NOT_AVAILABLE}
"""Busy, or a broker that starts or stops (SERVICE_NOT_AVAILABLE)."""

_PROMISE_MISSED = frozenset({ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT})
"""Executed, but flush or replication are not confirmed."""


class _Rule(Struct, frozen=True):
    """Rule of a purpose. Pauses in seconds, doubled from `pause` to `pause_max`."""

    pause: float
    pause_max: float
    busy: frozenset[ResponseCode]
    busy_pause: float | None = None
    elsewhere: frozenset[ResponseCode] = frozenset()
    """Codes that concern this peer only: another may accept the request."""
    away: frozenset[ResponseCode] = frozenset()
    """Those of them that a broker answers with that takes nothing now; with NOT_LEADING_MARK because it does not lead."""
    any_peer: bool = False
    """Whether any peer would do, so that another one is asked after a connection error."""
    no_heartbeat: frozenset[ResponseCode] = frozenset()
    maybe_done: frozenset[ResponseCode] = frozenset()
    """Codes after which the request may have been executed."""


_RULES = {
    Purpose.LOOK_UP: _Rule(
        0.2, 2.0, _BUSY_OR_STARTING, elsewhere=frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED}), any_peer=True
    ),
    # Not at another peer: only this broker has the group's offsets.
    Purpose.COMMIT: _Rule(0.2, 2.0, _BUSY_OR_STARTING),
    Purpose.READ: _Rule(1.0, 1.0, _BUSY_OR_STARTING),
    Purpose.SLICE: _Rule(0.2, 2.0, _BUSY_OR_STARTING),
    # 1 s, as RocketMQ's pullTimeDelayMillsWhenException.
    Purpose.PULL: _Rule(
        1.0,
        1.0,
        _BUSY_OR_STARTING,
        no_heartbeat=frozenset({ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}),
    ),
    Purpose.SEND: _Rule(
        0.05,
        1.0,
        _BUSY,
        busy_pause=0.02,
        elsewhere=frozenset(  # RocketMQ's retryResponseCodes
            {
                ResponseCode.TOPIC_NOT_EXIST,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                ResponseCode.SYSTEM_ERROR,
                ResponseCode.NO_PERMISSION,
                ResponseCode.NO_BUYER_ID,
                ResponseCode.NOT_IN_CURRENT_UNIT,
            }
        ),
        away=frozenset({ResponseCode.SERVICE_NOT_AVAILABLE}),
        any_peer=True,
    ),
    Purpose.STAGED: _Rule(
        0.05, 1.0, _BUSY_OR_STARTING | _PROMISE_MISSED, maybe_done=_PROMISE_MISSED | {ResponseCode.SYSTEM_ERROR}
    ),
    Purpose.GIVE_BACK: _Rule(0.05, 1.0, frozenset()),  # busy: sent as a new message, perhaps elsewhere
}
DENIED_SECONDS = 5.0
"""Pause of those who go on all the same, such as members of a group, after access control refused them, s."""
_ACL_EXCEPTION = "AclException"
"""What tells a refusal of access control from other failures: RocketMQ has no code of its own for it."""
AWAY_PAUSE_MAX = 0.2
"""Longest pause of a send that waits for a leader, s."""
_NOT_LEADING = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION})
_EARLIER_WORDS = "takes no messages here"
_NOT_YET_SECONDS = 0.1
"""Pause after a pull was refused because our newest heartbeat had not arrived, s."""


def denied(code: int, remark: str | None) -> bool:
    """Return whether access control refused a request."""
    return code == ResponseCode.SYSTEM_ERROR and remark is not None and _ACL_EXCEPTION in remark


def refusal(code: int, remark: str, peer: str, action: str) -> BrokerError:
    """Make the error of a refusal. It is retriable if the peer is busy, starts or stops."""
    if denied(code, remark):
        return AccessDenied(code, remark, peer, action)
    return BrokerError(code, remark, peer, action, retriable=code in _BUSY_OR_STARTING)


def says_not_leading(remark: str) -> bool:
    """Return whether a refusal says that its broker does not lead; one of an earlier release of ours has other words for it."""
    return remark.startswith(NOT_LEADING_MARK) or _EARLIER_WORDS in remark


def may_have_moved(error: BaseException) -> bool:
    """Return whether, after this error of a request to a broker, another one may lead in its place."""
    if isinstance(error, BrokerError):
        return error.code in _NOT_LEADING
    return isinstance(error, ConnectionFailed | RequestTimeout | NoRoute)


def judge(error: MetaqError, purpose: Purpose, failed: int = 1) -> Judgement:
    """Decide on `error`, the last of `failed` in a row. The pause is set also if the request must not be repeated."""
    rule = _RULES[purpose]
    # The shift is bounded because the number of failures is not.
    pause = min(rule.pause * (1 << min(failed - 1, 30)), rule.pause_max)
    if isinstance(error, AccessDenied):
        # Servers of a cluster have the same accounts; and an account that tries again and again looks like an attack.
        return Judgement(again=False, pause=max(pause, DENIED_SECONDS))
    if isinstance(error, BrokerError):
        # A sender leaves a broker that starts or stops; pulls and commits wait for theirs.
        if error.code in rule.elsewhere:
            away = error.code in rule.away and says_not_leading(error.remark)
            unknown = error.remark.startswith(IN_DOUBT_MARK)
            wait = min(pause, AWAY_PAUSE_MAX) if away else pause
            return Judgement(again=True, elsewhere=True, pause=wait, maybe_done=unknown, away=away)
        if error.code in rule.busy:
            wait = pause if rule.busy_pause is None else rule.busy_pause
            done = error.code in rule.maybe_done
            return Judgement(again=True, elsewhere=rule.any_peer, pause=wait, only_busy=True, maybe_done=done)
        if error.code in rule.no_heartbeat:
            return Judgement(again=True, pause=_NOT_YET_SECONDS, no_heartbeat=True)
        # Every other refusal is final.
        return Judgement(again=False, pause=pause, maybe_done=error.code in rule.maybe_done)
    if isinstance(error, ConnectionFailed | RequestTimeout):
        # `sent` False: the request never left, so a repetition cannot do it twice.
        away = purpose is Purpose.SEND and not error.sent
        wait = min(pause, AWAY_PAUSE_MAX) if away else pause
        return Judgement(again=True, elsewhere=rule.any_peer, pause=wait, maybe_done=error.sent, away=away)
    if isinstance(error, RemoteProtocolError | BadRequest):  # there was a response, but undecodable
        return Judgement(again=True, elsewhere=rule.any_peer, pause=pause, maybe_done=True)
    if isinstance(error, NoRoute) and error.away:
        return Judgement(again=True, elsewhere=rule.any_peer, pause=min(pause, AWAY_PAUSE_MAX), away=True)
    return Judgement(again=error.retriable, elsewhere=rule.any_peer and error.retriable, pause=pause)


class Patience:
    """Retries of one operation with growing pauses, up to a total time. The time comes in as an argument."""

    def __init__(self, purpose: Purpose, seconds: float, now: float) -> None:
        """Args: seconds: total time from `now` on, by any monotonic clock."""
        self._purpose, self._seconds = purpose, seconds
        self.renew(now)

    def renew(self, now: float) -> None:
        """Restart the total time after a success."""
        self._until, self._failed = now + self._seconds, 0

    def pause(self, error: MetaqError, now: float) -> float:
        """Return the pause before the next try, s. Raises `error`: it is final, or the time is over."""
        judgement = judge(error, self._purpose, self._failed + 1)
        if not judgement.again or now + judgement.pause > self._until:
            raise error
        self._failed += 1
        return judgement.pause
