"""SQL92 filters of consumer groups: compiled, and remembered in `config/consumerFilter.json`.

A pull is filtered by its group's heartbeat, or by the filter in the request. The file is RocketMQ's: filters by topic and group,
kept for a day after the group has gone. It filters retried messages of topics that the group no longer subscribes to
(`filterSupportRetry`), and a RocketMQ broker can take over the folder.

Expressions come from clients, so their cost is bounded: of each in `metaq.model.filters.sql`, of all stored texts and of all
compiled filters in use by bytes, and of parsing by a rate per host and in all.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping

from metaq.broker.allowance import Allowances, Rate, share_of
from metaq.broker.part import BrokerPart
from metaq.clock import Clock, SteadyTime
from metaq.errors import Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model.filters.predicates import PREDICATE
from metaq.model.filters.sql import SQL92, TEXT_BYTES_MAX, Program, SqlError, compile_sql
from metaq.model.filters.subscription import GroupFilter, SubscriptionData
from metaq.model.topics.topic import check_group, check_partition_topic
from metaq.options import KIB, MIB, BrokerOptions
from metaq.saved_file import TextFile
from metaq.wire.hot import Condition, Filter

log = logging.getLogger(__name__)

KEPT_BYTES_MAX = 16 * MIB
"""Text of all stored filters. Beyond that, filters of groups that are gone are dropped, the oldest first."""
COMPILED_BYTES_MAX = 128 * MIB
"""Memory of all compiled filters in use, also by held pulls (estimate); less if all clients may have less than four times that."""
RECENT_MAX = 16
NEW_BYTES_MAX = 128 * 1024
"""Text of new expressions of one group in one heartbeat: parsing them takes some 0.1 s of the event loop."""
READ_BY_PEER = Rate(256 * KIB, 32 * KIB)
READ_BY_ALL = Rate(2 * MIB, 128 * KIB)
"""Rates of new expression text that is parsed: 64 KiB take 5 to 15 ms of the event loop."""
_ENTRY_BYTES = 512
"""Memory of a filter beside its text (estimate)."""
_STEP_BYTES = 256
"""Memory of a step of a compiled expression (estimate)."""
# Node's client omits expressionType.
TAGS = ("TAG", "")
AGE_AT_LOAD_MS = 30_000
"""Age as a dead one of a filter whose group was alive when the file was written, ms."""

FilterTable = dict[tuple[str, str], GroupFilter]
"""(topic, group) → the group's filter for the topic."""


class Filters(BrokerPart):
    """The filters of one broker. `changes` counts changes that void cached decisions about pulls."""

    leads = False

    def __init__(self, options: BrokerOptions, clock: Clock, file: TextFile[FilterTable]) -> None:
        """Raises ConfigError: the file cannot be read."""
        self._options, self._clock, self._steady = options, clock, SteadyTime(clock)
        self._log = RateLimitedLog(log, clock)
        self._file, self._format = file.file, file.format
        self._allowed = Allowances(clock, READ_BY_PEER, READ_BY_ALL)
        self._recent: dict[str, Program | str] = {}
        """Last parsed texts → program, or the error's text."""
        self._compiled: weakref.WeakValueDictionary[str, Condition] = weakref.WeakValueDictionary()
        self._compiled_bytes = Counter[str]()
        """Client → bytes of the compiled filters that it brought first."""
        self._released: deque[tuple[str, int]] = deque()
        """Client and bytes of compiled filters that were freed, appended by finalizers in any thread."""
        self._relief: Callable[[], None] = _nothing
        self._dirty = False
        self.failing = ""
        """Reason of the last save's failure; "" if it succeeded."""
        self.changes = 0
        self.noted: Callable[[str, str], None] | None = None
        """Called with topic and group of each filter that changes: a master tells its slaves."""
        self.followed = False
        """A master's filters are taken over, and it says when a group is gone: `expire` does nothing."""
        now = clock.now_ms()
        self._table: FilterTable = {
            # Alive in the file: its group may have gone before the restart, and joins again with a heartbeat if not.
            key: one if one.dead_ms else _died(one, max(now - AGE_AT_LOAD_MS, one.born_ms))
            for key, one in (file.read() or {}).items()
        }
        self._topics_of: dict[str, set[str]] = {}
        for topic, group in self._table:
            self._topics_of.setdefault(group, set()).add(topic)
        self._bytes = sum(map(_size, self._table.values()))
        self._brought: dict[tuple[str, str], str] = {}
        """Key of a filter that was stored in this run → client."""
        self._bytes_of = Counter[str]()

    @property
    def table(self) -> Mapping[tuple[str, str], GroupFilter]:
        return self._table

    # -- expressions
    def check(self, wanted: SubscriptionData, peer: str) -> None:
        """Check a subscription (CHECK_CLIENT_CONFIG, 46).

        Raises Refused: INVALID (type), BAD_FILTER (text), THROTTLED (`_parsed`).
        """
        if wanted.expression_type in TAGS or wanted.expression_type == PREDICATE:  # predicates: `Predicates.check`
            return
        self._may(wanted.expression_type)
        self._understand(wanted.expression, peer)

    def of_text(self, text: str, expression_type: str, peer: str) -> Filter:
        """Return the filter of an expression in a pull request.

        Raises Refused: BAD_FILTER (it cannot be parsed), INVALID (unknown type, or SQL is off), BUSY, THROTTLED.
        """
        if expression_type == SQL92:
            self._understand(text, peer)  # RocketMQ reports a syntax error before it looks whether SQL is enabled
        self._may(expression_type)
        return Filter((), self._compile(text, peer))

    def of_group(self, group: str, stored: SubscriptionData, peer: str) -> Filter:
        """Return the filter of a group's heartbeat. Raises Refused: NO_FILTER (it cannot be parsed), INVALID, BUSY, THROTTLED."""
        if stored.expression_type == SQL92:
            try:
                self._understand(stored.expression, peer)
            except Refused as error:
                if error.reason is not Reason.BAD_FILTER:
                    raise
                raise Refused(
                    Reason.NO_FILTER,
                    f"the broker has no filter of group {group} for topic {stored.topic}, whose expression is wrong: {error}",
                ) from None
        self._may(stored.expression_type)
        return Filter((), self._compile(stored.expression, peer))

    def of_retried(self, group: str, subscriptions: Collection[SubscriptionData], peer: str) -> Filter | None:
        """Return the filter of a group's retry topic: per original topic, its current SQL filter, or the last one stored.

        None: no filter. Raises Refused THROTTLED: an expression cannot be parsed yet.
        """
        if not self._options.filter_support_retry or not self._options.enable_property_filter:
            return None
        # Stored filters first, then those of the current subscriptions over them.
        texts = {one.topic: one.expression for one in self._of_group(group)}
        for wanted in subscriptions:
            texts.pop(wanted.topic, None)
            if wanted.expression_type == SQL92:
                texts[wanted.topic] = wanted.expression
        made = dict[bytes, Condition]()
        for topic, text in texts.items():
            try:
                made[topic.encode()] = self._compile(text, peer)
            except Refused as error:
                if error.reason is Reason.THROTTLED:
                    raise
                self._log.warning(
                    ("retry", group, topic),
                    "retried messages of group %s from topic %s are not filtered: %s", group, topic, error,
                )  # fmt: skip
        return Filter((), None, made) if made else None

    def _may(self, expression_type: str) -> None:
        if expression_type != SQL92 or not self._options.enable_property_filter:
            why = "" if expression_type != SQL92 else ": enablePropertyFilter is false"
            raise Refused(
                Reason.INVALID, f"The broker does not support consumer to filter message by {expression_type}{why}"
            )

    def _understand(self, text: str, peer: str) -> None:
        """Check an expression. Raises Refused, as `_parsed`. One that is in use needs no parsing."""
        if text not in self._compiled:
            self._parsed(text, peer)

    def _parsed(self, text: str, peer: str) -> Program:
        """Parse an expression. The last ones are cached, wrong ones too, so that repeated requests cost nothing.

        Raises Refused: BAD_FILTER (with the place of the error), THROTTLED (the host `peer`, or all together, have sent more new
        text than READ_BY_PEER or READ_BY_ALL allow).
        """
        found = self._recent.get(text)
        if found is None:
            # Longer texts are refused without parsing, so they cost nothing.
            if len(text) <= TEXT_BYTES_MAX and not self._allowed.take(peer, len(text)):
                raise Refused(
                    Reason.THROTTLED,
                    f"new SQL filters come faster than {READ_BY_PEER.per_second} bytes a second from one "
                    f"host, or {READ_BY_ALL.per_second} from all: try again later, use fewer different ones, or shorter ones",
                )
            try:
                found = compile_sql(text)
            except SqlError as error:
                found = str(error)
            if len(text) <= TEXT_BYTES_MAX:
                # The oldest goes: a dict keeps the order of insertion.
                if len(self._recent) >= RECENT_MAX:
                    del self._recent[next(iter(self._recent))]
                self._recent[text] = found
        if isinstance(found, str):
            raise Refused(Reason.BAD_FILTER, found)
        return found

    def _compile(self, text: str, peer: str) -> Condition:
        """Compile an expression, or share the compiled one while it is in use. Raises Refused BUSY: too much is in use."""
        known = self._compiled.get(text)
        if known is not None:
            return known
        program, most = self._parsed(text, peer), min(COMPILED_BYTES_MAX, self._options.peer_bytes_max // 4)
        cost = len(text) + _STEP_BYTES * len(program.steps) + _ENTRY_BYTES
        if self._full(peer, cost, most):
            # Drops cached admissions, which may hold the last references to filters; then what is really in use is counted again.
            self._relief()
        if full := self._full(peer, cost, most):
            raise Refused(Reason.BUSY, full)
        made = self._compiled[text] = Condition(program)
        self._compiled_bytes[peer] += cost
        # Held pulls and cached admissions own the filter; the last one to go frees its share of the budget.
        weakref.finalize(made, self._released.append, (peer, cost)).atexit = False
        return made

    def _full(self, client: str, cost: int, most: int) -> str:
        """Return which limit a filter of `cost` bytes would exceed; "" if none."""
        while self._released:
            freed, size = self._released.popleft()
            self._compiled_bytes[freed] -= size
            if not self._compiled_bytes[freed]:
                del self._compiled_bytes[freed]
        if self._compiled_bytes.total() + cost > most:
            return f"the SQL filters in use take more than {most} bytes: use shorter or fewer expressions"
        if self._compiled_bytes[client] + cost > share_of(most):
            return (
                f"the SQL filters in use that came from {client} take more than {share_of(most)} bytes, a client's share: "
                "use shorter or fewer expressions"
            )
        return ""

    def when_full(self, relief: Callable[[], None]) -> None:
        """Register a callback that drops caches of compiled filters."""
        self._relief = relief

    def options_changed(self, _names: Collection[str]) -> None:
        """Void cached decisions after a change of options."""
        self.changes += 1

    # -- what groups want
    def register(self, group: str, subscriptions: Mapping[str, SubscriptionData], peer: str) -> None:
        """Store the SQL filters of a heartbeat from host `peer`. Wrong ones are not stored; the group's pulls are refused."""
        now = self._clock.now_ms()
        for wanted in subscriptions.values():
            if wanted.expression_type not in TAGS and wanted.expression_type != PREDICATE and wanted.expression:
                self._register(group, wanted, now, peer)
        for one in self._of_group(group):
            wants = subscriptions.get(one.topic)
            if (wants is None or wants.expression_type in TAGS) and not one.dead:
                self._put(_died(one, now))

    def check_amount(self, group: str, subscriptions: Mapping[str, SubscriptionData]) -> None:
        """Raise Refused INVALID for a heartbeat with more new expression text than NEW_BYTES_MAX."""
        # Before anything of the heartbeat is stored: parsing runs on the event loop, so its amount is bounded.
        new = 0
        for topic, wanted in subscriptions.items():
            if wanted.expression_type == SQL92 and len(wanted.expression) <= TEXT_BYTES_MAX:
                known = self._table.get((topic, group))
                new += 0 if known is not None and known.expression == wanted.expression else len(wanted.expression)
        if new > NEW_BYTES_MAX:
            raise Refused(
                Reason.INVALID,
                f"group {group} brings {new} bytes of new SQL filters at once, the limit is {NEW_BYTES_MAX}",
            )

    def _register(self, group: str, wanted: SubscriptionData, now: int, peer: str) -> None:
        known = self._table.get((wanted.topic, group))
        same = known is not None and (known.expression, known.expression_type) == (
            wanted.expression, wanted.expression_type,
        )  # fmt: skip
        # A late heartbeat with an older version, or another text under the same version, changes nothing (RocketMQ's rule).
        if known is not None and (wanted.version < known.version or (wanted.version == known.version and not same)):
            return
        if known is not None and same:
            if known.version != wanted.version or known.dead:
                self._put(
                    GroupFilter(
                        known.topic, group, known.expression, known.expression_type, wanted.version, known.born_ms, 0
                    )
                )
            return
        try:
            self._may(wanted.expression_type)
            program = self._parsed(wanted.expression, peer)
        except Refused as error:
            if error.reason is Reason.THROTTLED:
                self._log.warning(
                    ("throttled", peer),
                    "the filter of group %s for topic %s is not kept yet: %s",
                    group,
                    wanted.topic,
                    error,
                )
                return
            if error.reason is Reason.BAD_FILTER:
                self._drop([(wanted.topic, group)])
            self._log.warning(
                ("bad", group, wanted.topic),
                "the filter of group %s for topic %s cannot work, and its consumers get no messages: %s",
                group, wanted.topic, error,
            )  # fmt: skip
            return
        if program.never:
            # It consumes nothing, and its user sees no error.
            self._log.warning(
                ("never", group, wanted.topic),
                "in the filter of group %s for topic %s a condition is never true: %s",
                group, wanted.topic, program.never,
            )  # fmt: skip
        kept = GroupFilter(wanted.topic, group, wanted.expression, SQL92, wanted.version, now, 0)
        key = wanted.topic, group
        more = _size(kept) - (_size(known) if known is not None and self._brought.get(key) == peer else 0)
        for old in self._dead() if self._bytes_of[peer] + more > share_of(KEPT_BYTES_MAX) else ():
            if self._bytes_of[peer] + more <= share_of(KEPT_BYTES_MAX):
                break
            if old != key and self._brought.get(old) == peer:
                self._drop([old])
        if self._bytes_of[peer] + more > share_of(KEPT_BYTES_MAX):
            self._drop([key])
            self._log.warning(
                ("share", peer), "the filters that came from %s take more than %d bytes, a client's share: that of group %s for "
                "topic %s is not saved", peer, share_of(KEPT_BYTES_MAX), group, wanted.topic,
            )  # fmt: skip
            return
        self._put(kept, peer)

    def _put(self, one: GroupFilter, client: str | None = None) -> None:
        """Store a filter. `client`: who brought it; None: whoever brought the one before."""
        key = one.topic, one.group
        old = self._table.pop(key, None)
        self._count(key, old, -1)
        if client is not None:
            self._brought[key] = client
        self._count(key, one, 1)
        self._bytes += _size(one) - (0 if old is None else _size(old))
        self._table[key] = one
        self._topics_of.setdefault(one.group, set()).add(one.topic)
        self._change(key)
        if self._bytes > KEPT_BYTES_MAX:
            self._make_room(key)

    def _change(self, key: tuple[str, str]) -> None:
        self._dirty = True
        self.changes += 1
        if self.noted is not None:
            self.noted(*key)

    def take(self, topic: str, group: str, one: GroupFilter | None) -> None:
        """Store a filter as a master has it; None: drop it. Raises Refused INVALID: no master has such a one."""
        if one is None:
            self._drop([(topic, group)])
            return
        if one.expression_type != SQL92 or len(one.expression) > TEXT_BYTES_MAX:
            raise Refused(
                Reason.INVALID,
                f"the filter of group {group} for topic {topic} has {len(one.expression)} characters and type {one.expression_type:.40}: "
                f"{SQL92} is kept, up to {TEXT_BYTES_MAX}",
            )
        check_partition_topic(topic)
        check_group(group)
        if self._table.get((topic, group)) != one:
            self._put(one)

    def _count(self, key: tuple[str, str], one: GroupFilter | None, sign: int) -> None:
        """Count a filter for the client that brought it, if that was in this run."""
        client = self._brought.get(key)
        if client is None or one is None:
            return
        self._bytes_of[client] += sign * _size(one)
        if not self._bytes_of[client]:
            del self._bytes_of[client]

    def _make_room(self, newest: tuple[str, str]) -> None:
        """Drop filters of groups that are gone, the oldest first; if that is not enough, the newest filter."""
        for key in self._dead():
            if self._bytes <= KEPT_BYTES_MAX:
                return
            self._drop([key])
        if self._bytes > KEPT_BYTES_MAX:
            self._drop([newest])
            self._log.warning(
                ("room",), "the filters of groups take more than %d bytes: that of group %s for topic %s is not saved",
                KEPT_BYTES_MAX, newest[1], newest[0],
            )  # fmt: skip

    def _dead(self) -> list[tuple[str, str]]:
        """Return the filters of groups that are gone, the oldest first."""
        dead = [key for key, one in self._table.items() if one.dead]
        return sorted(dead, key=lambda key: self._table[key].dead_ms)

    def _of_group(self, group: str) -> list[GroupFilter]:
        return [self._table[topic, group] for topic in self._topics_of.get(group, ())]

    def drop_group(self, group: str) -> None:
        self._drop([(one.topic, group) for one in self._of_group(group)])

    def drop_topic(self, topic: str) -> None:
        self._drop([key for key in self._table if key[0] == topic])

    def _drop(self, keys: Collection[tuple[str, str]]) -> None:
        for key in keys:
            one = self._table.pop(key, None)
            if one is not None:
                self._count(key, one, -1)
                self._brought.pop(key, None)
                topics = self._topics_of[one.group]
                topics.discard(one.topic)
                if not topics:
                    del self._topics_of[one.group]
                self._bytes -= _size(one)
                self._change(key)

    def expire(self, online: Collection[str]) -> None:
        """Mark filters of groups that are offline, and drop those dead for filterDataCleanTimeSpan."""
        self._log.tick()
        if self.followed:
            return
        now, span = self._steady.now_ms(), self._options.filter_data_clean_time_span
        for key, one in list(self._table.items()):
            if one.dead and now - one.dead_ms >= span:
                self._drop([key])
            elif not one.dead and key[1] not in online:
                self._put(_died(one, now))

    # -- the file
    def save(self) -> None:
        """Save the table in a thread, if it has changed since the last save or that one failed."""
        if not self._dirty:
            return
        self._dirty = False
        table = dict(self._table)  # a copy: the saving thread encodes it
        self._file.save_soon(lambda: self._format.text(table), self._saved)

    def _saved(self, error: OSError | None) -> None:
        reason = "" if error is None else error.strerror or str(error)
        if reason:
            self._dirty = True
            # Once per reason: it is tried again with every save.
            if reason != self.failing:
                log.error("%s could not be saved: %s", self._file.where, reason)
        elif self.failing:
            log.info("%s could be saved again", self._file.where)
        self.failing = reason

    def close(self) -> None:
        """Save, and wait until that is on the disk."""
        self.save()
        self._file.flush()


def _nothing() -> None:
    """Do nothing: no cache is registered."""


def _died(one: GroupFilter, when_ms: int) -> GroupFilter:
    return GroupFilter(
        one.topic, one.group, one.expression, one.expression_type, one.version, one.born_ms, max(when_ms, one.born_ms)
    )


def _size(one: GroupFilter) -> int:
    return len(one.expression) + len(one.topic) + len(one.group) + _ENTRY_BYTES
