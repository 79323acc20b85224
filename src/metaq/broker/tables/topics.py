"""Topic settings, in `config/topics.json` (docs/formats/store-folder.md).

Topics are the system's, administrators' or automatically created ones.

A change is saved before it is visible: a topic whose sends are acknowledged must not be unknown after a restart. It also raises
the data version, by which name servers and slaves recognise the newer table. A request that needs a topic that is being saved
raises `Saving`; its server repeats it when the topic is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping

from msgspec import structs

from metaq.broker.allowance import MayMake, Quota, anybody_may
from metaq.clock import Clock
from metaq.errors import ConfigError, Reason, Refused
from metaq.model import DataVersion, Perm, TopicConfig
from metaq.model.topics.system import (
    AUTO_CREATE_TOPIC,
    OUR_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    SYSTEM_TOPIC_NAMES,
    SYSTEM_TOPICS,
    TRACE_TOPIC,
    reply_topic,
)
from metaq.model.topics.topic import QUEUES_MAX, check_partition_topic, check_topic
from metaq.options import BrokerOptions
from metaq.saved import Pending, SavedTable, Saving, at_once
from metaq.saved_file import TableFile

TopicWatcher = Callable[[str], None]
"""Callback with the name of a topic that was created, changed or deleted."""


class Topics:
    """All topics. `changes` counts changes, which void cached decisions."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        file: TableFile[str, TopicConfig, DataVersion],
        broker_name: str,
        delay_levels: int = 18,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
        prepare: Callable[[str, int], None] | None = None,
        may_make: MayMake = anybody_may,
    ) -> None:
        """
        Args:
            options: whether topics are created automatically, how many, and the broker's permission.
            file: topics.json.
            broker_name: name of a system topic that RocketMQ's tools look for, as is the cluster's.
            delay_levels: queues of SCHEDULE_TOPIC_XXXX.
            call_soon: runs a callback of the saving thread on the event loop.
            prepare: called in the saving thread with a new topic and the queue that is sent to first, before the topic is usable.
            may_make: quotas of those whose sends make topics.
        """
        self._options = options
        self._quota = Quota(
            clock,
            lambda: (options.auto_create_topics_max, options.auto_create_topics_per_minute),
            functools.partial(may_make, "topics"),
        )
        # Topics named like the cluster and the broker, and the cluster's reply topic, belong to the system.
        self._own_names = {options.broker_cluster_name, broker_name, reply_topic(options.broker_cluster_name)}
        if options.trace_topic_enable:
            self._own_names.add(_trace_topic(options.msg_trace_topic_name))
        self.refusal: str | None = None
        """Why topics take no messages of clients: they are another broker's, whose messages are copied here; None: they do."""
        self.changes = 0
        self._watchers: list[TopicWatcher] = []
        self._closing: dict[str, Pending] = {}
        self._prepare = prepare
        self._first_queues: dict[str, int] = {}
        version, table = file.read(DataVersion(clock.now_ms(), 0), self._check)
        self.saved = SavedTable(
            file, table, version, clock=clock, call_soon=call_soon, shown=self._changed, stored=self._prepare_queues
        )
        self._make_system_topics(broker_name, delay_levels)

    @property
    def table(self) -> Mapping[str, TopicConfig]:
        return self.saved.table

    @property
    def version(self) -> DataVersion:
        return self.saved.version

    @property
    def closing(self) -> Mapping[str, Pending]:
        """Topics under deletion → the pending deletion.

        Until it ends they take no messages, and no topic of the same name is created.
        """
        return self._closing

    def close(self, name: str) -> Pending:
        """Block use and creation of the topic until `reopen`. Returns the pending deletion."""
        pending = self._closing[name] = Pending()
        return pending

    def reopen(self, name: str, error: Refused | None = None) -> None:
        """End a deletion: the topic is gone, or stays because of `error`. Waiting requests go on."""
        self._closing.pop(name).finish(error)

    # -- start
    def _check(self, name: str) -> None:
        if name not in self._own_names:
            check_partition_topic(name)

    def _make_system_topics(self, broker_name: str, delay_levels: int) -> None:
        options = self._options
        # The topics that a RocketMQ broker registers at boot. Java's admin client looks up the route of a topic named like the
        # cluster before it creates topics there, and fails without it.
        inherit, usable = int(Perm.INHERIT), int(Perm.INHERIT | Perm.READ | Perm.WRITE)
        wanted = [
            *(_topic(topic.name, topic.queues) for topic in SYSTEM_TOPICS if topic.queues),
            _topic(options.broker_cluster_name, 16, usable if options.cluster_topic_enable else inherit),
            _topic(broker_name, 1, usable if options.broker_topic_enable else inherit),
            _topic(SCHEDULE_TOPIC, delay_levels),
            _topic(reply_topic(options.broker_cluster_name), 1),
            *([_topic(options.msg_trace_topic_name, 1)] if options.trace_topic_enable else ()),
        ]
        missing = {config.name: config for config in wanted if config.name not in self.table}
        if template := self._other_template():
            missing[AUTO_CREATE_TOPIC] = template
        if missing:
            self.saved.start_with(missing)

    def _other_template(self) -> TopicConfig | None:
        """Return the template topic (TBW102) as `autoCreateTopicEnable` requires it; None if it is right.

        A saved one with the other setting must not override the option: its inherit permission decides on creation.
        """
        template, inherit = self.saved.coming(AUTO_CREATE_TOPIC), int(Perm.INHERIT)
        enabled = self._options.auto_create_topic_enable
        if template is None:
            usable = inherit | int(Perm.READ | Perm.WRITE)
            return _topic(AUTO_CREATE_TOPIC, self._options.default_topic_queue_nums, usable) if enabled else None
        perm = template.perm | inherit if enabled else template.perm & ~inherit
        return None if perm == template.perm else structs.replace(template, perm=perm)

    def options_changed(self, names: Collection[str]) -> None:
        """Update the template topic and the advertised permission after changes of these options."""
        if "auto_create_topic_enable" in names and (template := self._other_template()):
            self.saved.change(AUTO_CREATE_TOPIC, template)
        # Registrations carry the permission with every topic, and name servers take them only with a newer data version.
        if "broker_permission" in names or "draining" in names:
            self.changes += 1
            self.saved.renew(SCHEDULE_TOPIC).when_done(lambda error: self._all_changed() if error is None else None)

    def _all_changed(self) -> None:
        for name in list(self.table):
            self._changed(name)

    # -- questions
    def get(self, name: str) -> TopicConfig | None:
        return self.table.get(name)

    def taking(self, name: str) -> TopicConfig | None:
        """Return the topic to append to; None: there is none. Raises Saving while it is being deleted; Refused NOT_LEADING."""
        if self.refusal is not None and not self.is_system(name):
            raise Refused(Reason.NOT_LEADING, self.refusal)
        return self._there(name)

    def _there(self, name: str) -> TopicConfig | None:
        if name in self._closing:
            raise Saving(self._closing[name])
        return self.table.get(name)

    def closed(self, name: str) -> bool:
        """Return whether the topic takes no messages now because it is being created or deleted."""
        return name in self._closing or (name not in self.table and self.saved.pending(name) is not None)

    def require(self, name: str) -> TopicConfig:
        """Return the topic. Raises Refused NO_TOPIC."""
        config = self.table.get(name)
        if config is None:
            raise Refused(
                Reason.NO_TOPIC,
                f"topic[{name}] not exist, apply first please! (metaq topic create {name})",
            )
        return config

    def is_system(self, name: str) -> bool:
        """Return whether administrators may not change or delete the topic."""
        return name in SYSTEM_TOPIC_NAMES or name.startswith(SYSTEM_PREFIX) or name in self._own_names

    def system_names(self) -> list[str]:
        return sorted(SYSTEM_TOPIC_NAMES | self._own_names)

    # -- changes
    def auto_create(
        self, name: str, template_name: str, queues: int, *, unit: bool = False, queue_id: int = -1, client: str = ""
    ) -> TopicConfig:
        """Create a topic for a send, after the template that the sender names (usually TBW102).

        Args:
            queue_id: the queue that is sent to, whose file is prepared; -1: unknown.
            client: `Caller.client` of the sender, whose share of all topics it counts for.

        Raises Saving: it is being created; Refused: NO_TOPIC (no template, one without inherit permission, or a limit is
        reached), UNAVAILABLE (it could not be saved).
        """
        pending = self._closing.get(name) or self.saved.pending(name)
        if pending is not None:
            raise Saving(pending)
        template = self.table.get(template_name)
        refusal = ""
        if not self._options.auto_create_topic_enable:
            refusal = "autoCreateTopicEnable is false"
        elif template is None or not template.perm & Perm.INHERIT:
            refusal = f"the template topic {template_name!r} is missing or has no inherit permission"
        else:
            refusal = self._quota.take(name, self.saved.count, client)
        if refusal or template is None:
            raise Refused(
                Reason.NO_TOPIC,
                f"topic[{name}] not exist, apply first please! It cannot be created automatically: {refusal}. "
                f"Create it with `metaq topic create {name}`",
            )
        # As RocketMQ: the lesser of the client's defaultTopicQueueNums (4) and the template's queues (8).
        count = max(1, min(queues, template.write_queues))
        config = TopicConfig(
            name, count, count, template.perm & ~int(Perm.INHERIT), int(unit), filter_type=template.filter_type
        )
        # Only this queue: preparing all would allocate files that nobody may use.
        if 0 <= queue_id < count:
            self._first_queues[name] = queue_id
        return self._counted(config)

    def admit(self, name: str, queues: int, client: str = "") -> TopicConfig:
        """Create a topic for a put of MetaQ 1.x whose name matches a wildcard section of server.ini.

        Raises Saving: it is being created; Refused: NO_TOPIC (a limit is reached), UNAVAILABLE (it could not be saved).
        """
        pending = self._closing.get(name) or self.saved.pending(name)
        if pending is not None:
            raise Saving(pending)
        if refusal := self._quota.take(name, self.saved.count, client):
            raise Refused(
                Reason.NO_TOPIC,
                f"the topic {name} is not there, and cannot be made because a wildcard admits it: {refusal} "
                f"(autoCreateTopicsMax, autoCreateTopicsPerMinute). Give it a section, or create it with `metaq topic create {name}`",
            )
        return self._counted(_topic(name, queues))

    def _counted(self, config: TopicConfig) -> TopicConfig:
        """Save a topic for which the quota was taken; a failed save gives it back."""
        pending = self.saved.change(config.name, config)
        pending.when_done(lambda error: self._refused(config.name) if error else None)
        pending.settle()
        return config

    def _refused(self, name: str) -> None:
        self._quota.give_back(name)
        self._first_queues.pop(name, None)

    def ensure(self, name: str, queues: int = 1, sys_flag: int = 0) -> TopicConfig:
        """Return a retry or dead-letter topic; create it with read and write permission if missing. Raises Saving, Refused."""
        config = self._there(name)
        if config is None:
            config = structs.replace(_topic(name, queues), sys_flag=sys_flag)
            self.saved.change(name, config).settle()
        return config

    def update(self, config: TopicConfig) -> Pending:
        """Create or change a topic for an administrator.

        Raises Refused: a system topic, or numbers out of range; Saving: one of this name is being deleted.
        """
        check_topic(config.name)
        if self.is_system(config.name):
            raise Refused(Reason.INVALID, f"The topic[{config.name}] is conflict with system topic.")
        check_numbers(config)
        # Otherwise a topic could be created again while its messages are being deleted.
        if config.name in self._closing:
            raise Saving(self._closing[config.name])
        return self.saved.change(config.name, config)

    def set_ordered(self, names: Collection[str]) -> None:
        """Mark exactly these topics as ordered; name servers advertise it."""
        for name in list(self.table):
            config = self.saved.coming(name)  # with a change that is being saved, which must not be undone
            if config is not None and config.order is not (name in names) and name not in self._closing:
                self.saved.change(name, structs.replace(config, order=not config.order))

    def restore(self, queues: Mapping[str, int]) -> None:
        """Add topics whose settings are lost (name → number of queues), at a start."""
        self.saved.start_with({name: _topic(name, count) for name, count in queues.items()})

    def delete(self, name: str) -> Pending:
        """Remove a topic from the table; the rest of a deletion is in `metaq.broker.deletion`.

        Raises Refused: a system topic.
        """
        if self.is_system(name):
            raise Refused(Reason.INVALID, f"The topic[{name}] is conflict with system topic.")
        return self.saved.change(name, None)

    def watch(self, watcher: TopicWatcher) -> None:
        """Call `watcher` with each topic that changes from now on, once the change is visible."""
        self._watchers.append(watcher)

    def replaced(self, name: str) -> None:
        """Void cached decisions about a topic whose queues are others now."""
        self._changed(name)

    def _prepare_queues(self, names: list[str]) -> None:
        for name in names:
            queue_id = self._first_queues.pop(name, None)
            # Allocating the queue's first file here, in the saving thread, keeps that out of the first send.
            if queue_id is not None and self._prepare is not None:
                self._prepare(name, queue_id)

    def _changed(self, name: str) -> None:
        self.changes += 1
        if name not in self.table:
            self._quota.gone(name)
        for watcher in self._watchers:
            watcher(name)

    def announced(self, names: Collection[str] | None = None) -> dict[str, TopicConfig]:
        """Return the table, or the topics of `names`, as registered with name servers.

        A broker without read or write permission registers every topic with its own permission, as RocketMQ's does. One that is
        drained takes only the write permission off each: producers go elsewhere, and what they still send is taken.
        """
        perm = self._options.broker_permission
        table = dict(self.table) if names is None else {name: self.table[name] for name in names if name in self.table}
        if not (perm & Perm.READ and perm & Perm.WRITE):
            table = {name: structs.replace(config, perm=perm) for name, config in table.items()}
        if self._options.draining:
            table = {name: structs.replace(config, perm=config.perm & ~Perm.WRITE) for name, config in table.items()}
        return table


def check_numbers(config: TopicConfig) -> None:
    """Check numbers of queues and permissions. Raises Refused INVALID."""
    for what, count in (("readQueueNums", config.read_queues), ("writeQueueNums", config.write_queues)):
        if not 0 <= count <= QUEUES_MAX:
            raise Refused(Reason.INVALID, f"topic {config.name}: {what}={count} is outside 0..{QUEUES_MAX}")
    if not 0 <= config.perm <= 7:
        raise Refused(Reason.INVALID, f"topic {config.name}: perm={config.perm} is outside 0..7")


def _topic(name: str, queues: int, perm: int = int(Perm.READ | Perm.WRITE)) -> TopicConfig:
    return TopicConfig(name, queues, queues, perm)


def _trace_topic(name: str) -> str:
    """Return `name` if it may be the trace topic. Raises ConfigError."""
    if name in SYSTEM_TOPIC_NAMES - {TRACE_TOPIC} or name.startswith(OUR_PREFIX):
        raise ConfigError(f"msgTraceTopicName={name}: that topic has a purpose of its own; give traces another")
    try:
        return check_topic(name)
    except Refused as error:
        raise ConfigError(f"msgTraceTopicName={name}: {error.text}") from None


def check_client_topic(name: str) -> str:
    """Return `name` if clients may use it.

    Raises Refused: INVALID (illegal name), NO_PERMISSION (one of the broker's own topics).

    Names with a dot, which RocketMQ forbids and MetaQ 1.x allows, may be read by all clients; `SendService` refuses them.
    """
    check_partition_topic(name)
    if name.startswith(OUR_PREFIX):
        raise Refused(Reason.NO_PERMISSION, f"the topic {name} belongs to the broker itself")
    return name
