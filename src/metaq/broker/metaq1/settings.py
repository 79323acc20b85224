"""What one broker runs with for MetaQ 1.x, and who must hear when it changes."""

from __future__ import annotations

from collections.abc import Callable, Collection

from metaq.model.metaq1.settings import PartitionRules, PartitionSettings
from metaq.options import Metaq1Options, Settings


class Metaq1Settings:
    """The options, which change in place, and the rules for topics, which are exchanged.

    `text` is that of the file (`server.ini`, with what `topic.ini` adds), for `stats config` and its checksum in ZooKeeper.
    """

    def __init__(self, options: Metaq1Options, rules: PartitionRules | None = None, text: bytes = b"") -> None:
        self.options, self.text = options, text
        self.settings = Settings(options)
        """Whoever keeps what was made of options watches these."""
        self.rules = rules or PartitionRules(PartitionSettings.of(options))
        self._checks: list[Callable[[PartitionRules], None]] = []
        self._watchers: list[Callable[[Collection[str]], None]] = []

    def watch(self, changed: Callable[[Collection[str]], None]) -> None:
        """From now on, call `changed` when the rules were exchanged, with the names of the topics whose settings differ.

        Topics that have no section are not among them: look at `rules.default`.
        """
        self._watchers.append(changed)

    def require(self, check: Callable[[PartitionRules], None]) -> None:
        """From now on, rules are put in force only if `check` returns. It raises ConfigError."""
        self._checks.append(check)

    def check(self, rules: PartitionRules) -> None:
        """Raises ConfigError: these rules cannot be in force. Changes nothing."""
        for check in self._checks:
            check(rules)

    def exchange(self, rules: PartitionRules, text: bytes) -> None:
        """Put other rules in force, and tell everybody who watches. What a watcher raises comes when all have been told."""
        before, self.rules, self.text = self.rules, rules, text
        names = rules.changed(before)
        failures = []
        for watcher in self._watchers:
            try:
                watcher(names)
            except Exception as error:  # noqa: BLE001  raised below
                failures.append(error)
        if failures:
            raise failures[0]
