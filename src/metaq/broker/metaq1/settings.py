"""MetaQ 1.x's settings of one broker, and their watchers."""

from __future__ import annotations

from collections.abc import Callable, Collection

from metaq.model.metaq1.pair import PairSettings
from metaq.model.metaq1.settings import PartitionRules, PartitionSettings
from metaq.options import Metaq1Options, Settings


class Metaq1Settings:
    """Options, which change in place, and rules for topics, which a reload replaces.

    `text` is the text of `server.ini` (with what `topic.ini` adds), for `stats config` and the checksum in ZooKeeper: slaves of
    the original compare that to notice changes. `pair`: the broker is one half of a synchronous pair.
    """

    def __init__(
        self,
        options: Metaq1Options,
        rules: PartitionRules | None = None,
        text: bytes = b"",
        pair: PairSettings | None = None,
    ) -> None:
        self.options, self.text, self.pair = options, text, pair
        self.settings = Settings(options)
        """Notifies watchers of changed options."""
        self.rules = rules or PartitionRules(PartitionSettings.of(options))
        self.path = ""
        """Of the server.ini; empty: there is none."""
        self._checks: list[Callable[[PartitionRules], None]] = []
        self._watchers: list[Callable[[Collection[str]], None]] = []

    @property
    def follows(self) -> str | None:
        """Why no message of clients is taken, because this broker is a slave by the text protocol; None: it is none."""
        options = self.options
        if options.slave_id is None:
            return None
        return (
            f"broker {options.broker_id} takes no messages here: this is its asynchronous slave {options.slave_id} (slaveId), send them "
            "to the master"
        )

    def watch(self, changed: Callable[[Collection[str]], None]) -> None:
        """Register a callback for new rules, called with the names of topics whose settings differ.

        Topics without a section are not among them: they follow `rules.default`.
        """
        self._watchers.append(changed)

    def require(self, check: Callable[[PartitionRules], None]) -> None:
        """Register a check of new rules. It raises ConfigError to reject them."""
        self._checks.append(check)

    def check(self, rules: PartitionRules) -> None:
        """Run the registered checks. Raises ConfigError: the rules are rejected. Changes nothing."""
        for check in self._checks:
            check(rules)

    def exchange(self, rules: PartitionRules, text: bytes) -> None:
        """Put new rules in force, and notify all watchers. The first watcher's error is raised at the end."""
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
