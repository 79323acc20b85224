"""Commands that failed: what their clients are told, in the original's words, and what the counters and the log have of them."""

from __future__ import annotations

import functools
from typing import Final

from metaq.broker.audit import Audit
from metaq.broker.channel import Channel
from metaq.errors import MetaqError, Reason, Refused, shortage
from metaq.log import RateLimitedLog
from metaq.servers.metaq1.auditing import audited
from metaq.servers.metaq1_counters import Counted, Counters
from metaq.wire.metaq1.commands import Code, Command, GetLine, PutLine, QuitLine, SyncLine, TransactionLine, result
from metaq.wire.metaq1.refusals import CODE_OF

TEXT_CHARS_MAX: Final = 4096
"""Characters of an error text in an answer: some carry what the peer sent."""


class Failures:
    """The failed commands of one server.

    Args:
        faults: gets what is no refusal.
        url: the broker's place, which texts of failed puts name.
        audit: notes refused commands.
        master: this broker is the master of a pair: its refusals of puts are told without its place, as the original tells them.
        slave: it is the slave of one, and takes syncs.
    """

    def __init__(
        self, counters: Counters, faults: RateLimitedLog, url: str, audit: Audit | None, *, master: bool, slave: bool
    ) -> None:
        self._counters, self._faults, self._url, self._audit = counters, faults, url, audit
        self._master, self._slave = master, slave

    def answer(self, line: Command, error: BaseException, channel: Channel) -> bytes:
        """Return the answer to a command that has failed, and note that it has."""
        assert not isinstance(line, QuitLine), "nothing is answered to it"
        code, text = self._told(line, error, channel)
        if isinstance(error, Refused) and self._audit is not None:
            request = functools.partial(audited, line, channel.remote)
            self._audit.refused(channel.caller.address, error.reason, text, request)
        match line:
            case SyncLine() if not self._slave:
                pass
            case PutLine() | SyncLine():
                self._counters.count(Counted.PUT_FAILED, line.topic)
                # The original's text, except for puts into transactions, and for those to the master of a pair, which have none.
                if isinstance(line, SyncLine) or not (line.transactional or self._master):
                    place = f"[broker '{self._url}'] [partition '{line.topic[:TEXT_CHARS_MAX]}-{line.partition}']"
                    text = f"Put message to {place} failed.Detail:{text}"
            case GetLine():
                self._counters.count(Counted.GET_MISS, line.topic)
        return result(code, text.encode("utf-8", "replace"), line.opaque)

    def _told(self, line: Command, error: BaseException, channel: Channel) -> tuple[Code, str]:
        if isinstance(error, Refused):
            code = CODE_OF[error.reason]
            # The original's codes: 400 for a get with an impossible size, 500 for any other bad command.
            if error.reason is Reason.INVALID and isinstance(line, GetLine):
                code = Code.BAD_REQUEST
            elif isinstance(line, TransactionLine) or (isinstance(line, PutLine) and line.transactional):
                # The only code that 1.x's transaction clients tell from success; of its body they make an XAException.
                code = Code.ERROR
            return code, error.text[:TEXT_CHARS_MAX]
        word, text = type(line).__name__, f"{type(error).__name__}: {error}"
        about, remote = (word, type(error).__name__), channel.remote
        if isinstance(error, MetaqError | OSError | MemoryError):
            text = shortage(error) or text
            self._faults.warning(about, "a %s of %s failed: %s", word, remote, text)
        else:
            self._faults.error(about, "a %s of %s failed", word, remote, error=error)
        return Code.ERROR, text[:TEXT_CHARS_MAX]

    def tick(self) -> None:
        """Tell what was left out of the log. Called ten times a second."""
        self._faults.tick()
