"""Whether, where and when the same may be asked again: judged here and nowhere else.

`judge` looks at the error's class and at a broker's code. What a request is *for* matters as well: a send that one
broker refuses may go to another, a pull cannot; a member of a group whose heartbeat is late sends it again, a reader
has none. Callers differ in one thing only, how long they go on: `retries` of a producer, a number of seconds
(`Patience`), or for ever (a consumer group).
"""

from __future__ import annotations

import enum

from msgspec import Struct

from metaq.errors import BadRequest, BrokerError, ConnectionFailed, MetaqError, RemoteProtocolError, RequestTimeout
from metaq.wire.codes import ResponseCode


class Purpose(enum.Enum):
    """What a request is for."""

    LOOK_UP = enum.auto()
    """Routes, offsets, members: nothing changes, so asking twice does no harm."""
    COMMIT = enum.auto()
    """Progress, registrations: the last one counts, so sending it twice does no harm."""
    READ = enum.auto()
    """A pull of a reader, which is in no group."""
    SLICE = enum.auto()
    """A request of a Spark query, to plan or to read: tried again for a number of seconds, as the job depends on it."""
    PULL = enum.auto()
    """A pull of a group's member, which brokers know by its heartbeat."""
    SEND = enum.auto()
    """Messages: what was stored, and not acknowledged, is stored twice by another try."""
    STAGED = enum.auto()
    """Staged transactions: every request may be repeated, and a missed flush or replica is a reason to."""
    GIVE_BACK = enum.auto()
    """A failed message goes back to the broker that holds it. Our brokers recognise what they have taken before; a
    RocketMQ stores it twice."""


class Judgement(Struct, frozen=True):
    """What to do about an error."""

    again: bool
    """Whether the same request may be made again. If not, the answer is final, and the caller must get it."""
    elsewhere: bool = False
    """Whether another peer may do what this one does not; it may be asked at once."""
    pause: float = 0.0
    """Seconds before it is made again here."""
    only_busy: bool = False
    """Whether the peer is only busy: waiting for it costs no try."""
    no_heartbeat: bool = False
    """Whether the broker does not know our subscription (yet): a heartbeat must go first."""
    maybe_done: bool = False
    """Whether the peer may have done what was asked, although no answer says so."""


_BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
_BUSY_OR_STARTING = _BUSY | {ResponseCode.SERVICE_NOT_AVAILABLE}
"""Busy, or SERVICE_NOT_AVAILABLE: a broker that starts or stops."""

_PROMISE_MISSED = frozenset({ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT})
"""Done, but not known to be on the disk, or at the slave."""


class _Rule(Struct, frozen=True):
    """Pauses are in seconds; they double from `pause` to `pause_max`."""

    pause: float
    pause_max: float
    busy: frozenset[ResponseCode]
    busy_pause: float | None = None
    elsewhere: frozenset[ResponseCode] = frozenset()
    """Codes that are this peer's own: another may accept the same request."""
    any_peer: bool = False
    """Whether any peer would do: after an error of the connection another one is asked."""
    no_heartbeat: frozenset[ResponseCode] = frozenset()
    maybe_done: frozenset[ResponseCode] = frozenset()
    """Codes after which the request may have been carried out."""


_RULES = {
    Purpose.LOOK_UP: _Rule(
        0.2, 2.0, _BUSY_OR_STARTING, elsewhere=frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED}), any_peer=True
    ),
    Purpose.COMMIT: _Rule(0.2, 2.0, _BUSY_OR_STARTING),
    Purpose.READ: _Rule(1.0, 1.0, _BUSY_OR_STARTING),
    Purpose.SLICE: _Rule(0.2, 2.0, _BUSY_OR_STARTING),
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
        elsewhere=frozenset(  # RocketMQ's list.
            {
                ResponseCode.TOPIC_NOT_EXIST,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                ResponseCode.SYSTEM_ERROR,
                ResponseCode.NO_PERMISSION,
                ResponseCode.NO_BUYER_ID,
                ResponseCode.NOT_IN_CURRENT_UNIT,
            }
        ),
        any_peer=True,
    ),
    Purpose.STAGED: _Rule(
        0.05, 1.0, _BUSY_OR_STARTING | _PROMISE_MISSED, maybe_done=_PROMISE_MISSED | {ResponseCode.SYSTEM_ERROR}
    ),
    Purpose.GIVE_BACK: _Rule(0.05, 1.0, frozenset()),  # A broker that is busy does not get it: a copy goes elsewhere.
}
_NOT_YET_SECONDS = 0.1
"""Pause after a pull that was refused because our newest heartbeat had not arrived."""


def refusal(code: int, remark: str, peer: str, action: str) -> BrokerError:
    """The error of a peer that answered with `code`: retriable if that says that it is busy, starts or stops."""
    return BrokerError(code, remark, peer, action, retriable=code in _BUSY_OR_STARTING)


def judge(error: MetaqError, purpose: Purpose, failed: int = 1) -> Judgement:
    """What to do about `error`, the latest of `failed` in a row. The pause holds also for those who never give up."""
    rule = _RULES[purpose]
    pause = min(rule.pause * (1 << min(failed - 1, 30)), rule.pause_max)
    if isinstance(error, BrokerError):
        if error.code in rule.elsewhere:
            return Judgement(again=True, elsewhere=True, pause=pause)
        if error.code in rule.busy:
            wait = pause if rule.busy_pause is None else rule.busy_pause
            done = error.code in rule.maybe_done
            return Judgement(again=True, elsewhere=rule.any_peer, pause=wait, only_busy=True, maybe_done=done)
        if error.code in rule.no_heartbeat:
            return Judgement(again=True, pause=_NOT_YET_SECONDS, no_heartbeat=True)
        return Judgement(again=False, pause=pause, maybe_done=error.code in rule.maybe_done)
    if isinstance(error, ConnectionFailed | RequestTimeout):
        return Judgement(again=True, elsewhere=rule.any_peer, pause=pause, maybe_done=error.sent)
    if isinstance(error, RemoteProtocolError | BadRequest):  # There was an answer, which cannot be read.
        return Judgement(again=True, elsewhere=rule.any_peer, pause=pause, maybe_done=True)
    return Judgement(again=error.retriable, elsewhere=rule.any_peer and error.retriable, pause=pause)


class Patience:
    """How long one operation may go on failing: pauses that grow, up to a total. The time comes in as an argument."""

    def __init__(self, purpose: Purpose, seconds: float, now: float) -> None:
        """Args: seconds: from `now` on, any clock that runs evenly."""
        self._purpose, self._seconds = purpose, seconds
        self.renew(now)

    def renew(self, now: float) -> None:
        """Start anew: something worked."""
        self._until, self._failed = now + self._seconds, 0

    def pause(self, error: MetaqError, now: float) -> float:
        """Seconds to wait before the next try. Raises `error` if another cannot help, or the time is over."""
        judgement = judge(error, self._purpose, self._failed + 1)
        if not judgement.again or now + judgement.pause > self._until:
            raise error
        self._failed += 1
        return judgement.pause
