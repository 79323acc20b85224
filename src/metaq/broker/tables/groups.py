"""Settings of consumer groups, in `config/subscriptionGroup.json`.

Unless `autoCreateSubscriptionGroup` is off, a group is created with RocketMQ's defaults when it first joins or pulls. As with
topics, a change is saved before it is visible, and requests that need it raise `Saving` until then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from metaq.broker.allowance import MayMake, Quota, anybody_may
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import DataVersion, GroupConfig
from metaq.model.topics.system import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from metaq.model.topics.topic import check_group
from metaq.options import BrokerOptions
from metaq.saved import Pending, SavedTable, Saving, at_once
from metaq.saved_file import TableFile

RETRY_MAX = 1_000_000
"""Largest retryMaxTimes. Orderly consumers, which retry without limit, send Integer.MAX with each message instead."""


class Groups:
    """All consumer groups. `changes` counts changes, which void cached decisions."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        file: TableFile[str, GroupConfig, DataVersion],
        call_soon: Callable[[Callable[[], None]], None] = at_once,
        may_make: MayMake = anybody_may,
    ) -> None:
        self._options = options
        self._quota = Quota(
            clock,
            lambda: (options.auto_create_groups_max, options.auto_create_groups_per_minute),
            functools.partial(may_make, "groups"),
        )
        self.changes = 0
        self._watchers: list[Callable[[str], None]] = []
        version, table = file.read(DataVersion(clock.now_ms(), 0))
        for name in SYSTEM_GROUPS:
            # The groups of RocketMQ's tools and system consumers, which its broker registers at boot.
            table.setdefault(name, GroupConfig(name))
        self.saved = SavedTable(file, table, version, clock=clock, call_soon=call_soon, shown=self._changed)

    @property
    def table(self) -> Mapping[str, GroupConfig]:
        return self.saved.table

    @property
    def version(self) -> DataVersion:
        return self.saved.version

    def get(self, name: str) -> GroupConfig | None:
        return self.table.get(name)

    def require(self, name: str, client: str = "") -> GroupConfig:
        """Return the group; create it if that is allowed. `client`: `Caller.client`, whose share of all it counts for.

        Raises Saving: it is being created; Refused: NO_GROUP, INVALID (illegal name), UNAVAILABLE (it could not be saved).
        """
        config = self.table.get(name)
        if config is not None:
            return config
        check_group(name)
        pending = self.saved.pending(name)
        if pending is not None:
            raise Saving(pending)
        if self._options.auto_create_subscription_group or name.startswith(SYSTEM_GROUP_PREFIX):
            # Groups of RocketMQ's own tools and clients (CID_RMQ_SYS_) are created even where users' groups are not.
            refusal = self._quota.take(name, self.saved.count, client)
        else:
            refusal = "autoCreateSubscriptionGroup is false"
        if refusal:
            raise Refused(
                Reason.NO_GROUP,
                f"subscription group [{name}] does not exist and cannot be created automatically: {refusal}",
            )
        config = GroupConfig(name)
        pending = self.saved.change(name, config)
        pending.when_done(lambda error: self._quota.give_back(name) if error else None)
        pending.settle()
        return config

    def update(self, config: GroupConfig) -> Pending:
        """Create or change a group for an administrator. Raises Refused for an illegal name or number."""
        check_settings(config)
        return self.saved.change(config.name, config)

    def delete(self, name: str) -> Pending:
        """Delete a group's settings."""
        return self.saved.change(name, None)

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` with the name of each group that changes from now on, once the change is visible."""
        self._watchers.append(watcher)

    def _changed(self, name: str) -> None:
        self.changes += 1
        if name not in self.table:
            self._quota.gone(name)
        for watcher in self._watchers:
            watcher(name)


def check_settings(config: GroupConfig) -> None:
    """Check name and numbers. Raises Refused INVALID."""
    check_group(config.name)
    for what, value, high in (
        ("retryQueueNums", config.retry_queues, 1024),
        ("retryMaxTimes", config.retry_max, RETRY_MAX),
    ):
        if not -1 <= value <= high:
            raise Refused(Reason.INVALID, f"group {config.name}: {what}={value} is outside -1..{high}")
