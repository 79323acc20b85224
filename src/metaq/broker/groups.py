"""Consumer groups: their settings, kept in `config/subscriptionGroup.json`.

A group that nobody made is made when it first joins or pulls, with RocketMQ's defaults, unless the broker forbids it.
"""

from __future__ import annotations

from metaq.broker.offsets import SavedText
from metaq.broker.quota import Quota
from metaq.clock import Clock
from metaq.errors import BadRequest, ConfigError
from metaq.model import DataVersion, GroupConfig
from metaq.model.topic import check_group
from metaq.options import BrokerOptions
from metaq.wire import beans, bodies, fastjson
from metaq.wire.codes import ResponseCode

BORN = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
SYSTEM_PREFIX = "CID_RMQ_SYS_"
RETRY_MAX = 1_000_000
"""Largest retryMaxTimes: an orderly consumer sends Integer.MAX of its own, a group's setting needs no more than this."""


class Groups:
    """All consumer groups. `changes` counts the changes, for whoever caches a verdict about a group."""

    def __init__(self, options: BrokerOptions, clock: Clock, file: SavedText) -> None:
        self._options, self._clock, self._file = options, clock, file
        self._quota = Quota(clock, options.auto_create_groups_max, options.auto_create_groups_per_minute)
        self.table: dict[str, GroupConfig] = {}
        self.version = DataVersion(clock.now_ms(), 0)
        self.changes = 0
        text = file.load()
        if text:
            try:
                tree = beans.parse(text, "subscriptionGroup.json")
                self.version, self.table = bodies.group_table_of_tree(tree)
            except BadRequest as error:
                raise ConfigError(f"subscriptionGroup.json cannot be read ({error}); restore its .bak") from error
        for name in BORN:
            self.table.setdefault(name, GroupConfig(name))

    def get(self, name: str) -> GroupConfig | None:
        return self.table.get(name)

    def require(self, name: str) -> GroupConfig:
        """The group, made if that is allowed. Raises BadRequest SUBSCRIPTION_GROUP_NOT_EXIST, or 1 for an illegal name."""
        config = self.table.get(name)
        if config is not None:
            return config
        check_group(name)
        if self._options.auto_create_subscription_group or name.startswith(SYSTEM_PREFIX):
            refusal = self._quota.take(len(self.table))
        else:
            refusal = "autoCreateSubscriptionGroup is false"
        if refusal:
            raise BadRequest(
                f"subscription group [{name}] does not exist and cannot be created automatically: {refusal}",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        return self.put(GroupConfig(name))

    def update(self, config: GroupConfig) -> GroupConfig:
        """Create or change a group for an administrator. Raises BadRequest for an illegal name or number."""
        check_group(config.name)
        for what, value, high in (
            ("retryQueueNums", config.retry_queues, 1024),
            ("retryMaxTimes", config.retry_max, RETRY_MAX),
        ):
            if not -1 <= value <= high:
                raise BadRequest(f"group {config.name}: {what}={value} is outside -1..{high}")
        return self.put(config)

    def put(self, config: GroupConfig) -> GroupConfig:
        if self.table.get(config.name) != config:
            self.table[config.name] = config
            self._changed()
        return config

    def delete(self, name: str) -> bool:
        """Forget a group. Returns whether it existed."""
        if self.table.pop(name, None) is None:
            return False
        self._changed()
        return True

    def _changed(self) -> None:
        self.changes += 1
        self.version = self.version.next(self._clock.now_ms())
        self._file.save(fastjson.dumps_file(self.to_tree()))

    def to_tree(self) -> bodies.Tree:
        """Request 201's answer and the file: `{"dataVersion", "subscriptionGroupTable"}`."""
        return bodies.group_table_tree(self.table, self.version)
