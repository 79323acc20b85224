"""Options that administrators change over the wire (25, 318): hot ones only, in a file of their own beside the server's data.

They beat the user's configuration, which is never written, until the file is removed or one of them is changed again. A change is
on the disk before it is in force, and in force before anybody is told. RocketMQ lets whoever can connect set every key, paths and
commands too, and rewrites its configuration file (CVE-2023-33246 and CVE-2023-37582).
"""

from __future__ import annotations

import functools
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from metaq.errors import ConfigError, Reason, Refused
from metaq.option_table import Applied, OptionTable, Settings, camel, nearest
from metaq.saved import PendingOutcome, at_once
from metaq.saved_file import TextFile

log = logging.getLogger(__name__)

VALUE_CHARS_MAX: Final = 256
WAITING_MAX: Final = 64
"""Changes that wait for the file at most."""
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_FORMS: Final = {"delete_when": (re.compile(r"\d{1,2}(;\d{1,2})*"), "hours, `;`-separated, as 04;16")}
"""Options that are texts → what they must look like."""

BY_FILE_ALONE: Final = frozenset({"address_page"})
"""Hot options that say where clients go: they change with the server's configuration file, which its owner alone writes."""

ChangedFile = TextFile[dict[str, str]]
"""RocketMQ's name of an option → value."""


class ChangedOptions:
    """The options of one server that were changed over the wire; applied to its tables at once.

    Args:
        settings: its option tables.
        file: with the changes; None: none can be made.
        call_soon: brings a call from another thread to the event loop.
    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        file: ChangedFile | None,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        self._settings, self._file, self._call_soon = settings, file, call_soon
        self._waiting: deque[tuple[dict[str, str], PendingOutcome[Applied]]] = deque()
        self._table: dict[str, str] = {}
        self.failing = ""
        """Reason of the last save's failure; "" if it succeeded."""
        if file is not None:
            settings.kept_in = file.file.where
            self._load(file)

    @property
    def table(self) -> Mapping[str, str]:
        """RocketMQ's name of an option → its value, of all that were changed."""
        return self._table

    def _load(self, file: ChangedFile) -> None:
        for key, value in (file.read() or {}).items():
            try:
                self._judge({key: value})
            except Refused as error:  # of another release, or edited by hand
                log.warning("%s: %s is passed over: %s", file.file.where, key, error.text)
            else:
                self._table[key] = value
        if self._table:
            self._apply(self._table)
            told = ", ".join(f"{key}={value}" for key, value in sorted(self._table.items()))
            log.info("options from %s, changed over the wire: %s", file.file.where, told)

    def change(self, pairs: Mapping[str, str]) -> PendingOutcome[Applied]:
        """Change options, all or none. Returns the pending change, which ends when it is saved and in force.

        Args: pairs: any spelling → value, as text.

        Raises Refused: INVALID (no option, a key that has no effect here, a wrong value), NO_PERMISSION (an option that is not
        changed while the server runs), BUSY.
        """
        if self._file is None:
            raise Refused(Reason.INVALID, "this server has no file for options that are changed over the wire")
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(Reason.BUSY, f"{WAITING_MAX} changes of options are being saved; try again")
        named = self._judge(pairs)
        outcome: PendingOutcome[Applied] = PendingOutcome()
        self._waiting.append((named, outcome))
        if len(self._waiting) == 1:
            self._save()
        return outcome

    def _judge(self, pairs: Mapping[str, str]) -> dict[str, str]:
        """Return the pairs by RocketMQ's names. Raises Refused."""
        if not pairs:
            raise Refused(Reason.INVALID, "the request names no option")
        return {camel(self._judge_one(key, value)): value.strip() for key, value in pairs.items()}

    def _judge_one(self, key: str, value: str) -> str:
        table = next((table for table in self._settings.tables if key in table.spellings()), None)
        if table is None:
            if reason := self._settings.without_effect.get(key):
                raise Refused(Reason.INVALID, f"{key} has no effect here: {reason}")
            known = {spelling: "" for table in self._settings.tables for spelling in table.spellings()}
            raise Refused(Reason.INVALID, f"there is no option {key[:100]!r} here{nearest(key[:100], known)}")
        name = table.spellings()[key]
        if name not in table.hot_names():
            raise Refused(
                Reason.NO_PERMISSION,
                f"{camel(name)} is not changed over the wire: set it in the server's configuration file and start it again",
            )
        if name in BY_FILE_ALONE:
            raise Refused(
                Reason.NO_PERMISSION,
                f"{camel(name)} is not changed over the wire: set it in the server's configuration file and send it SIGHUP",
            )
        if len(value) > VALUE_CHARS_MAX:
            raise Refused(Reason.INVALID, f"{camel(name)}: the value has {len(value)} characters")
        form, what = _FORMS.get(name, (None, ""))
        if form is not None and not form.fullmatch(value.strip()):
            raise Refused(Reason.INVALID, f"{camel(name)}={value!r}: need {what}")
        try:
            typed = getattr(table.read({key: value})[0], name)
        except ConfigError as error:
            raise Refused(Reason.INVALID, str(error)) from None
        if isinstance(typed, int) and abs(typed) > _most(table, name):
            raise Refused(Reason.INVALID, f"{camel(name)}={value}: the largest allowed value is {_most(table, name)}")
        return name

    def _save(self) -> None:
        assert self._file is not None, "changes are refused without one"
        pairs, _ = self._waiting[0]
        table, form = {**self._table, **pairs}, self._file.format

        def saved(error: OSError | None) -> None:
            self._call_soon(functools.partial(self._saved, table, error))

        self._file.file.save_soon(lambda: form.text(table), saved)

    def _saved(self, table: dict[str, str], error: OSError | None) -> None:
        pairs, outcome = self._waiting.popleft()
        self.failing = "" if error is None else error.strerror or str(error)
        if error is not None:
            outcome.finish(
                Refused(Reason.NOT_STORED, f"the options could not be saved, and stay as they were: {self.failing}")
            )
        else:
            self._table = table
            self._take_effect(pairs, outcome)
        if self._waiting:
            self._save()

    def _take_effect(self, pairs: Mapping[str, str], outcome: PendingOutcome[Applied]) -> None:
        try:
            applied = self._apply(pairs)
        except Exception:  # of a watcher: the options have changed
            log.exception("a change of options has not taken effect everywhere")
            outcome.finish(
                Refused(Reason.NOT_STORED, "the options are changed, but not everywhere: the server's log says why")
            )
        else:
            outcome.succeed(applied)

    def _apply(self, pairs: Mapping[str, str]) -> Applied:
        self._settings.pinned |= {
            table.spellings()[key] for table in self._settings.tables for key in pairs if key in table.spellings()
        }
        applied = self._settings.change(pairs, "a change over the wire")
        for change in applied.changed.values():
            log.warning("%s: changed over the wire", change)
        return applied


def _most(table: OptionTable, name: str) -> int:
    """The largest value of a number: RocketMQ's types are Java's, and what computes with more was never tried."""
    item = next(item for item in fields(table) if item.name == name)
    default: Any = item.default if item.default is not MISSING else 0
    return _LONG_MAX if isinstance(default, int) and default > _INT_MAX else _INT_MAX
