"""`Admin`: the operations as blocking methods."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from metaq.admin import (
    acl,
    brokers,
    group_changes,
    groups,
    members,
    messages,
    order,
    quota,
    replicas,
    topics,
    traces,
    tracks,
)
from metaq.admin.configuring.calls import OptionCalls
from metaq.admin.figures.calls import FigureCalls
from metaq.admin.growth.calls import GrowthCalls
from metaq.admin.monitoring.calls import MonitoringCalls
from metaq.admin.offsets.calls import OffsetCalls
from metaq.admin.rolling.calls import RollingCalls
from metaq.admin.transaction_calls import TransactionCalls
from metaq.admin.upkeep import scrubbing
from metaq.admin.upkeep.cleaning import CleaningCalls
from metaq.client.conversation.accounts import SetAccount
from metaq.client.identity.names import LATEST, checked, milliseconds, start_of
from metaq.client.identity.options import client_options
from metaq.client.shared import cores
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pending import PendingCalls
from metaq.errors import ClientClosed
from metaq.model import GroupConfig, MessageQueue, QueueData, StoredMessage
from metaq.model.acl.accounts import AclView
from metaq.model.acl.judgement import AccessExplanation
from metaq.model.acl.secret import Secret
from metaq.model.inspection import QueueUnits
from metaq.model.quota import QuotaUse
from metaq.model.reload import ReloadedFile
from metaq.model.topics.system import TRACE_TOPIC
from metaq.model.topics.topic import check_topic

Result = TypeVar("Result")


class Admin(
    CleaningCalls, FigureCalls, MonitoringCalls, GrowthCalls, OffsetCalls, OptionCalls, RollingCalls, TransactionCalls
):
    """Administration of one cluster.

    Args:
        namesrv: `host:port`, `;`-separated; None reads NAMESRV_ADDR.
        access_key, secret_key, security_token, acl_file: what requests are signed with (docs/client.md, "Access control").
        tls, ca, cert, key, key_password, tls_verify, crl: how connections are protected (docs/security.md).

    Every method raises ConnectionFailed or RequestTimeout if nobody can be reached, and BrokerError with the peer's
    code and text if it refused; ClientClosed, ClientForked. What changes several servers asks them beforehand, and raises
    NothingDone if one would refuse or does not answer; HalfDone if one fails all the same. These and the other errors are
    in `metaq.admin`. Arguments of one name mean the same everywhere: `cluster`, `broker`: only there, by its name (BrokerNotFound:
    there is none); `at`: only the server at `host:port`; `limit`: most entries. A context manager, too.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        acl_file: str | None = None,
        tls: bool | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        key_password: str | None = None,
        tls_verify: str | None = None,
        crl: str | os.PathLike[str] | None = None,
    ) -> None:
        self._options = client_options(
            access_key=access_key, secret_key=secret_key, security_token=security_token, acl_file=acl_file,
            tls=tls, ca=ca, cert=cert, key=key, key_password=key_password, tls_verify=tls_verify,
            crl=crl,
        )  # fmt: skip
        core = cores.acquire(namesrv, self._options)
        self._core: ClientCore | None = core
        self._calls = PendingCalls(core)

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)
        return f"<{type(self).__name__} at {core.name_servers}>" if core is not None else "<Admin: closed>"

    def create_topic(
        self,
        name: str,
        *,
        queues: int = 8,
        perm: int = 6,
        order: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create or change a topic at one broker, at all of a cluster, or everywhere.

        Args:
            queues: per broker.
            perm: 4 readable, 2 writable, 6 both.
            order: mark it as ordered; `set_topic_order` fixes its queues.
        Returns: the names of the brokers that have it now. Raises also ConfigError: not a legal name.
        """
        return self._run(
            topics.create(self._open, name, queues=queues, perm=perm, order=order, cluster=cluster, broker=broker)
        )

    def delete_topic(self, name: str, *, force: bool = False, dry_run: bool = False) -> None:
        """Delete a topic and its messages at every broker.

        Args: name: the topic. force: also while members of groups read it. dry_run: only check whether that can be done.
        Raises also TopicNotFound, TopicInUse: members of a group read it.
        """
        self._run(topics.delete(self._open, name, force=force, dry_run=dry_run))

    def list_topics(self, *, system: bool = False) -> list[str]:
        """Return the names of the topics, sorted; `system` adds system, retry and dead-letter topics. Empty: there is none."""
        return self._run(topics.names(self._open, system=system))

    def describe_topic(self, name: str) -> topics.TopicDetails:
        """Return brokers, queues and offsets of a topic. Raises also TopicNotFound."""
        return self._run(topics.describe(self._open, name))

    def update_topic(
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        force: bool = False,
    ) -> list[QueueData]:
        """Change a topic at one broker, at all of a cluster, or wherever it is: what is None stays. Returns its queues there.

        Args: name: the topic. read_queues, write_queues: per broker. perm: as in `create_topic`. force: also if a group has
        not consumed queues that will not be read any more.
        Raises also TopicNotFound, ConfigError: what waits would reach nobody.
        """
        return self._run(
            topics.update(
                self._open, name, read_queues=read_queues, write_queues=write_queues, perm=perm, cluster=cluster,
                broker=broker, force=force,
            )
        )  # fmt: skip

    def topic_order(self, name: str) -> order.TopicOrder:
        """Return the fixed queues of a strictly ordered topic, as each name server has them."""
        return self._run(order.show(self._open, name))

    def set_topic_order(self, name: str, layout: str | None = None) -> str:
        """Fix a topic's queues at every name server.

        Args: layout: `broker:queues;broker:queues`; None: the queues that it has now. Returns what was set.
        Raises also TopicNotFound, ConfigError: the layout cannot be read, or names what the topic does not have.
        """
        return self._run(order.put(self._open, name, layout))

    def delete_topic_order(self, name: str) -> None:
        """Remove the fixed queues of a topic: producers then use the queues of the brokers that are up."""
        self._run(order.delete(self._open, name))

    def list_accounts(self, *, at: str | None = None) -> dict[str, AclView]:
        """Return server name → its `accounts`, without secrets, and `white`, the addresses that need no signature; `at`: of one server."""
        return self._run(acl.views(self._open, at))

    def set_account(
        self,
        name: str,
        secret_key: str | None = None,
        *,
        admin: bool = False,
        white: str | None = None,
        default_topic: str | None = None,
        default_group: str | None = None,
        at: str | None = None,
    ) -> list[str]:
        """Make an account at every broker, or change it: what is None stays. Returns the names of the servers.

        Args:
            name: its access key.
            secret_key: a new account needs one.
            admin: whether it may do administration.
            white: addresses from which it needs no signature.
            default_topic, default_group: PUB, SUB, PUB|SUB or DENY.
            at: only at the server at this address.
        """
        account = SetAccount(name, admin, Secret(secret_key or ""), white, default_topic, default_group)
        return self._run(acl.make(self._open, account, at))

    def delete_account(self, name: str, *, at: str | None = None) -> list[str]:
        """Delete an account wherever it is. Returns the names of the servers. Raises also AccountNotFound."""
        return self._run(acl.delete(self._open, name, at))

    def grant(self, name: str, resource: str, right: str | None, *, at: str | None = None) -> list[str]:
        """Set an account's right to `topic:NAME` or `group:NAME`; None takes its entry away. Returns the names of the servers.

        Raises also AccountNotFound, ConfigError: no such resource.
        """
        return self._run(acl.give(self._open, name, resource, right, at))

    def explain_access(
        self, name: str, action: str, resource: str = "", *, address: str, signed: bool = True, at: str | None = None
    ) -> dict[str, AccessExplanation]:
        """Return server name → `allowed`, whether a request of an account would be; `why`, in words; `file`; `remark` of the refusal.

        Args: name: of the account, "": none. action: `publish`, `subscribe`, `observe`, `administer` or `register`. resource: `topic:NAME`,
        `group:NAME` or "". address: where it comes from. signed: its signature is right. at: one server. Raises also ConfigError.
        """
        return self._run(acl.explain(self._open, name, action, resource, address, at, signed=signed))

    def group_progress(self, group: str) -> groups.GroupProgress:
        """Return a consumer group's progress and members. Raises also GroupNotFound: no broker knows it."""
        return self._run(groups.progress(self._open, group))

    def consumer_running_info(self, group: str, client_id: str, *, stacks: bool = False) -> members.RunningMember:
        """Return what a running member of a consumer group tells of itself: `state` has its options, queues, rates; `broker` was asked.

        Args: client_id: the member. stacks: also the stacks of its threads (and, of a Python client, tasks).
        Raises also GroupNotFound, MemberNotFound; BrokerError: it did not answer within ten seconds.
        """
        return self._run(members.running_info(self._open, group, client_id, stacks=stacks))

    def consumer_positions(
        self, group: str, topic: str, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return client id → the offsets that the member would commit now in a topic; of all members, or of one.

        Members that do not answer are left out. Raises also GroupNotFound, MemberNotFound.
        """
        return self._run(members.positions(self._open, group, topic, client_id))

    def consume_directly(
        self, group: str, message_id: str, *, client_id: str | None = None, topic: str | None = None
    ) -> members.DirectConsumption:
        """Have a running member of a consumer group consume a stored message at once, and return how that went, its `outcome`.

        The member's handler gets the message as any other. The group's progress stays as it is, and a failed message does not
        come again.

        Args:
            message_id: as its send returned it, or the offset id of its place.
            client_id: the member; None: any that is online.
            topic: where the message is looked for; None: in the topics of the group.
        Raises also GroupNotFound, MemberNotFound, MessageNotFound, ConfigError; BrokerError: the
        member did not answer within ten seconds, or has no handler.
        """
        return self._run(members.consume(self._open, group, message_id, client_id=client_id, topic=topic))

    def group_producers(self, group: str) -> list[groups.ProducerInstance]:
        """Return the instances of a producer group: `client_id`, `language`, `version`, and `addresses`, by broker.

        Raises also GroupNotFound: none is connected.
        """
        return self._run(groups.producers(self._open, group))

    def skip_backlog(self, group: str, topic: str) -> list[groups.MovedProgress]:
        """Skip a consumer group's backlog in a topic. Returns, raises: as `reset_group`."""
        return self._run(groups.move(self._open, group, topic, LATEST))

    def reset_group(
        self, group: str, topic: str, to: str | float | dt.datetime, *, dry_run: bool = False
    ) -> list[groups.MovedProgress]:
        """Move a consumer group's offsets in a topic; online members continue there within seconds. Other groups are unchanged.

        Args:
            to: "earliest", "latest", or the first message stored at a time (datetime, or seconds since the epoch) or later.
            dry_run: move nothing, and return what would be moved.
        Returns, for each `queue`: the offset before, `consumed`, and after, `offset`; `online`: members are told, and go on there.
        Raises also GroupNotFound: it has no progress there; NoRoute, ConfigError, TypeError; PartlyMoved: only some did it.
        """
        return self._run(groups.move(self._open, group, topic, start_of(to), dry_run=dry_run))

    def set_group(
        self,
        name: str,
        *,
        consume: bool | None = None,
        broadcast: bool | None = None,
        retries: int | None = None,
        retry_queues: int | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, GroupConfig]:
        """Create a consumer group, or change it, at one broker, at all of a cluster, or everywhere: what is None stays.

        Args:
            name: the group.
            consume: members may pull; False stops the group.
            broadcast: members may broadcast.
            retries: deliveries of a message after its first one, before it is a dead letter.
            retry_queues: queues of its retry topic, at each broker.
        Returns: broker → its settings there now. Raises also ConfigError: not a legal name; BrokerNotFound.
        """
        settings = group_changes.GroupSettings(consume, broadcast, retries, retry_queues)
        return self._run(group_changes.put(self._open, name, settings, cluster=cluster, broker=broker))

    def delete_group(
        self,
        name: str,
        *,
        keep_progress: bool = False,
        dead_letters: bool = False,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[str]:
        """Delete a consumer group with its progress and what waits to be retried, at every broker.

        Args:
            name: the group.
            keep_progress: delete only its settings.
            dead_letters: also its dead letters.
            force: also with members, which make it anew unless brokers do not create groups by themselves.
            dry_run: only check whether that can be done.
        Returns: the topics that are gone. Raises also GroupNotFound, GroupOnline.
        """
        return self._run(
            group_changes.delete(
                self._open, name, keep_progress=keep_progress, dead_letters=dead_letters, force=force, dry_run=dry_run
            )
        )

    def clone_group(
        self, source: str, target: str, topic: str | None = None, *, dry_run: bool = False
    ) -> list[groups.MovedProgress]:
        """Give a group that has no members the progress of another, in one topic or in all; what it had there is overwritten.

        Returns as `reset_group`. Raises also GroupNotFound: the source has no progress there; GroupOnline.
        """
        return self._run(group_changes.clone(self._open, source, target, topic, dry_run=dry_run))

    def move_group(self, source: str, target: str, *, leave_retries: bool = False) -> list[groups.MovedProgress]:
        """Let a group without members go on under another name: with its settings and progress. The old group is left stopped.

        Args: source: the old name. target: the new one. leave_retries: also if messages wait in its retry topic: they stay with the
        old group. Returns as `reset_group`.
        Raises also GroupNotFound, GroupOnline, GroupInUse.
        """
        return self._run(group_changes.move(self._open, source, target, leave_retries=leave_retries))

    def find_messages(
        self,
        topic: str | None = None,
        *,
        message_id: str | None = None,
        key: str | None = None,
        start: float | dt.datetime | None = None,
        end: float | dt.datetime | None = None,
        limit: int = messages.FOUND_MAX,
    ) -> messages.FoundMessages:
        """Find messages of a topic: the newest `limit` ones, in the order in which they were stored.

        Args:
            message_id: id that a producer gave, or, also without the topic, that a broker gave (`offset_id`).
            key: a key of them, compared exactly; None: all of the time.
            start, end: stored at `start` or later, before `end` (datetime, or seconds since the epoch, the broker's clock).
        Raises also NoRoute, ConfigError, TypeError; MessageNotFound: no such id, and no topic is given.
        """
        wanted = messages.Wanted(
            topic=topic, message_id=message_id, key=key, start_ms=None if start is None else milliseconds(start),
            end_ms=None if end is None else milliseconds(end), limit=limit,
        )  # fmt: skip
        return self._run(messages.find(self._open, wanted))

    def get_message(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """Return one message. Args: as `find_messages`. Raises also MessageNotFound, NoRoute, ConfigError."""
        return self._run(messages.get(self._open, message_id, topic))

    def track_message(
        self, message_id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC
    ) -> tracks.MessageTrack:
        """Return where every group of its topic stands with a message, and the deliveries that clients have traced.

        Args, raises: as `get_message`; `trace_topic` as `message_trace`.
        """
        return self._run(tracks.track(self._open, message_id, topic, trace_topic=checked(check_topic, trace_topic)))

    def queue_units(
        self,
        topic: str,
        queue_id: int,
        *,
        broker: str | None = None,
        start: int | None = None,
        count: int = 10,
        group: str | None = None,
    ) -> tuple[MessageQueue, int, QueueUnits]:
        """Return a queue, the offset of the first unit, and units of its consume queue: where in the log each message is.

        Args:
            broker: needed if several have the queue `queue_id` of the `topic`.
            start: offset of the first of `count` units; below 0: so many before the end; None: the first that is there.
            group: return its subscription, too.
        Raises also NoRoute, ConfigError: no such queue.
        """
        return self._run(
            messages.units(self._open, topic, queue_id, broker=broker, start=start, count=count, group=group)
        )

    def message_trace(self, message_id: str, *, trace_topic: str = TRACE_TOPIC) -> traces.MessageTrace:
        """Return the timeline of one message, from the trace records of its clients.

        Raises also TraceNotFound, ConfigError.
        """
        return self._run(traces.trace(self._open, message_id, trace_topic=checked(check_topic, trace_topic)))

    def list_replicas(self, broker: str) -> list[replicas.Replica]:
        """Return the replicas of a broker, by their numbers: who leads, in which epoch, and how far the others are.

        Args: broker: its name, or `host:port` of one. Raises also BrokerNotFound.
        """
        return self._run(replicas.replicas(self._open, broker))

    def promote(
        self, broker: str, *, broker_id: int | None = None, role: str = "", force: bool = False
    ) -> replicas.Replica:
        """Make a slave of ours the master. A master that answers steps down first, so that nothing is lost.

        Args:
            broker: its name, or `host:port` of the slave.
            broker_id: number of the slave; None: the one with the most of the log.
            role: its brokerRole then; "": its master's.
            force: also if the master does not answer or does not step down: it may have messages that the slave lacks. They are
                cut off there, and kept, when it comes back.
        Returns: the new master. Raises also BrokerNotFound, NoSuchReplica.
        """
        return self._run(replicas.promote(self._open, broker, broker_id=broker_id, role=role, force=force))

    def demote(self, broker: str, *, broker_id: int | None = None) -> replicas.Replica:
        """Make a master of ours a slave. Nobody leads until one is promoted; `promote` does both.

        Args:
            broker: its name, or `host:port` of the master.
            broker_id: the number that it takes; None: the first that is free.
        Raises also BrokerNotFound, NoSuchReplica.
        """
        return self._run(replicas.demote(self._open, broker, broker_id=broker_id))

    def scrub(
        self,
        broker: str,
        *,
        repair: bool = False,
        bytes_per_second: int | None = None,
        progress: Callable[[scrubbing.ScrubProgress], None] | None = None,
    ) -> list[scrubbing.PairScrub]:
        """Compare the logs of a master of ours and its slaves, byte for byte, as far as both have them on their disks.

        Args:
            broker: its name, or `host:port` of one of them: of a slave, only that one and its master are compared.
            repair: also replace damaged records by those of the other side, in place. What was there is kept in the folder `cut/` of
                that broker. What is damaged at both sides, or looks right at both, is left as it is.
            bytes_per_second: of the log, at most; None: as fast as both disks and the network are, which their clients may notice.
            progress: called after each step, some MiB, in the thread of the client's event loop: it may not wait.
        Returns: an outcome for each slave. Raises also BrokerNotFound, NoSuchReplica, NotComparable: their log files
        have different sizes, or a log was cut meanwhile; RemoteProtocolError, BadRequest.
        """
        return self._run(
            scrubbing.scrub(self._open, broker, repair=repair, bytes_per_second=bytes_per_second, progress=progress)
        )

    def reload_broker(self, address: str) -> ReloadedFile:
        """Have a broker of ours on this machine read its configuration file again, as SIGHUP does.

        Args: address: `host:port` of its remoting server; name servers are not asked. Returns: the `file`, and sentences: `changed`,
        `waiting` for a restart, `warnings`. Raises BrokerError also if the file is wrong: nothing has changed then.
        """
        return self._run(brokers.reload(self._open, address))

    def close_partitions(self, address: str, topic: str, first: int, last: int) -> list[int]:
        """Close partitions `first` to `last` of a topic at a broker of ours to puts and gets, until they are opened or it restarts.

        Args: address: `host:port` of its remoting server. Returns: all partitions of the topic that are closed there.
        """
        return self._run(brokers.close_partitions(self._open, address, topic, first, last))

    def open_partitions(self, address: str, topic: str) -> list[int]:
        """Open all partitions of a topic to puts and gets again. Args, returns: as `close_partitions`."""
        return self._run(brokers.close_partitions(self._open, address, topic, -1, -1))

    def list_quotas(self, broker: str | None = None) -> dict[str, list[QuotaUse]]:
        """Return broker → its quotas and what is taken of them: of one broker (its name, or `host:port`), or of all masters.

        Each has `kind`, `name`, `limits`, and the figures of `metaq quota show`. Raises also BrokerNotFound.
        """
        return self._run(quota.show(self._open, broker))

    def set_quota(self, kind: str, name: str, limits: str, *, broker: str | None = None) -> list[str]:
        """Set the quota of a client, account or address. Returns the names of the brokers.

        Args:
            kind: `client`, `account` or `address`.
            name: client id, access key or host; `*`: each that has no quota of its own.
            limits: such as `requestsPerSecond=1000,bytesInPerSecond=10M` (docs/limits.md).
            broker: name, or `host:port`; None: all masters.
        Raises also ConfigError, BrokerNotFound.
        """
        return self._run(quota.put(self._open, broker, kind, name, limits))

    def remove_quota(self, kind: str, name: str, *, broker: str | None = None) -> list[str]:
        """Remove a quota from the brokers that have it. Args, returns: as `set_quota`. Raises also QuotaNotFound, BrokerNotFound."""
        return self._run(quota.remove(self._open, broker, kind, name))

    def close(self) -> None:
        """Close the connections; calls that wait in other threads raise ClientClosed. Safe to call twice."""
        core, self._core = self._core, None
        if core is not None:
            self._calls.end("this Admin was closed")
            core.thread.run(cores.release(core, self._options), timeout=5)

    @property
    def _open(self) -> ClientCore:
        if self._core is None:
            raise ClientClosed("this Admin was closed")
        return self._core

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        core = self._open
        # After a fork the loop's thread does not exist in the child: an error beats waiting for ever.
        core.check_process()
        return self._calls.run(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
