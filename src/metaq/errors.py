"""Errors of MetaQ, in one tree. The class says who must act; the text says what happened, where, and what to do.

`MetaqError`
├── `ConfigError`              our user: a setting, a flag or a file
├── `ProtocolError`
│   ├── `RemoteProtocolError`  the peer broke the framing: its connection is closed
│   ├── `BadRequest`           a well-framed request with a malformed value: it is answered
│   │   └── `BodyUnreadable`   a message whose body cannot be decompressed: a reader goes on behind it
│   └── `LocalProtocolError`   a value that the protocol cannot carry: nothing was sent
│       └── `InvalidMessage`   our user: a message with an empty body, a reserved property, ... (a ValueError too)
├── `NotFound`                 what a call names does not exist; each kind has a class of its own, beside its calls
├── `StoreError`
│   ├── `StoreLocked`, `StoreForeign`, `StoreCorrupt`   raised while opening a folder: nothing was changed
│   ├── `StoreFull`            no room; nothing was written; retry when there is room
│   ├── `MessageIllegal`       this message can never be stored
│   └── `StoreFailed`          an fsync failed: durability is unknown, the broker must stop
├── `ChangesBroken`            a topic of row changes has something at which its pipeline must stop
├── `Refused`                  a service does not do what was asked; its `Reason` says why
├── `BrokerError`              a broker or name server answered with an error code
│   └── `AccessDenied`         its access control refused the request: the account, its secret or a right is missing
└── `ClientError`
    ├── `NoRoute`, `SendFailed`, `RequestTimeout`, `BufferFull`
    ├── `ConnectionFailed`
    │   └── `UnknownOutcome`   a change was sent, and its answer did not come: it may have been made
    ├── `NotOurs`              a node that this process kept in ZooKeeper is gone, or another one's
    ├── `RowsNotSent`          `send_arrow`: some rows of the table were not acknowledged; it says which
    ├── `OffsetOutOfRange`, `MessagesLost`
    ├── `TransactionEnded`, `TransactionFailed`, `StaleBatch`
    ├── `NotSupported`
    └── `ClientClosed`, `ClientForked`
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Mapping

__all__ = [
    "AccessDenied",
    "BadRequest",
    "BodyUnreadable",
    "BrokerError",
    "BufferFull",
    "ChangesBroken",
    "ClientClosed",
    "ClientError",
    "ClientForked",
    "ConfigError",
    "ConnectionFailed",
    "InvalidMessage",
    "LocalProtocolError",
    "MessagesLost",
    "MetaqError",
    "NoRoute",
    "NotFound",
    "NotSupported",
    "OffsetOutOfRange",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestTimeout",
    "RowsNotSent",
    "SendFailed",
    "StaleBatch",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreForeign",
    "StoreFull",
    "StoreLocked",
    "TransactionEnded",
    "TransactionFailed",
    "UnknownOutcome",
    "XaError",
]
"""Those that users meet; the others stay within a server."""


class MetaqError(Exception):
    """Base of everything that MetaQ raises on purpose."""

    retriable = False
    """Repeating the call can help."""


class ConfigError(MetaqError):
    """A setting, a flag or a configuration file is wrong. The text names it and its place."""


class ProtocolError(MetaqError):
    """Bytes that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the framing. The connection cannot be trusted any more and is closed."""


class BadRequest(ProtocolError):
    """A well-framed request with a missing or malformed field or body. It is answered; the connection stays open."""


class BodyUnreadable(BadRequest):
    """The body of a message cannot be decompressed. Raised once; whoever goes on reading gets what comes behind it.

    `queue`, `offset`: its place. `message`: the message, with the body as it is stored. `why`: the reason.
    """

    def __init__(self, queue: object, offset: int, message: object, why: str) -> None:
        super().__init__(queue, offset, message, why)
        self.queue, self.offset, self.message, self.why = queue, offset, message, why

    def __str__(self) -> str:
        return f"the body of the message at offset {self.offset} of {self.queue} cannot be read: {self.why}"


class LocalProtocolError(ProtocolError):
    """A value that the protocol cannot carry. Nothing was sent."""


class InvalidMessage(LocalProtocolError, ValueError):
    """A part of a message that no broker takes or no format carries; the text says which. Nothing was sent."""


class NotFound(MetaqError):
    """What a call names does not exist: a topic, a group, an account, a quota, ... Nothing was changed."""


class StoreError(MetaqError):
    """The message store cannot do what was asked."""


class StoreLocked(StoreError):
    """Another process has this store folder open."""


class StoreForeign(StoreError):
    """The folder holds files that are not a message store's. Nothing was touched."""


class StoreCorrupt(StoreError):
    """A store file has a size or content that cannot be explained by a crash. Nothing was touched."""


class StoreFull(StoreError):
    """No room for another record. Nothing was written; the same message can be stored when there is room."""

    retriable = True


class NotLeading(StoreError):
    """The store is a replica's: what it holds comes from its master, and nothing else is appended."""


class MessageIllegal(StoreError):
    """This message can never be stored: too large, topic or properties too long, or malformed."""


class StoreFailed(StoreError):
    """An fsync or a write failed: what is durable is unknown. The broker acknowledges nothing more and exits."""


class ChangesBroken(MetaqError):
    """A topic of row changes has a gap, a step back or an unreadable body, at which its pipeline was told to stop.

    The text says where, and what to do. Nothing of the micro-batch was applied.
    """


class Reason(enum.Enum):
    """Why a service refuses. Each protocol server has a code for each reason (`metaq.servers.remoting.dispatch`)."""

    INVALID = "a value in the request is impossible"
    NO_PERMISSION = "this is forbidden, here or to this client"
    DENIED = "the rules of access control do not allow this to the caller"
    NO_TOPIC = "there is no such topic, and it is not made"
    NO_GROUP = "there is no such consumer group, and it is not made"
    NOT_SUBSCRIBED = "the group is not online, or has not subscribed to the topic"
    SUBSCRIPTION_OLD = "the subscription that the broker knows is older than the request's"
    BAD_FILTER = "the filter cannot be parsed"
    NO_FILTER = "the filter that the group's heartbeat named cannot work"
    OFFLINE = "no member of the group is connected"
    UNANSWERED = "a client that was asked did not answer in time"
    NOT_FOUND = "what was asked for is not there"
    ILLEGAL_MESSAGE = "the message can never be stored"
    STALE = "somebody has gone on since then who counts as the same writer"
    BUSY = "too much is under way; the same request may succeed later"
    THROTTLED = "messages come faster than the disk takes them; the same request may succeed later"
    UNAVAILABLE = "the server cannot do it at present; another one may"
    NOT_LEADING = "this broker does not lead, or may have been replaced; the one that leads may do it"
    NOT_STORED = "the store takes no messages at present: its disk is full or has failed; another server may"


class Refused(MetaqError):
    """A service does not do what was asked, and nothing has changed.

    Args:
        reason: decides the code of the answer.
        text: says what was refused, of which topic, group or queue, and what to do.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(reason, text)
        self.reason, self.text = reason, text
        self.retriable = reason in {
            Reason.BUSY,
            Reason.THROTTLED,
            Reason.UNAVAILABLE,
            Reason.NOT_LEADING,
            Reason.NOT_STORED,
        }

    def __str__(self) -> str:
        return self.text


class BrokerError(MetaqError):
    """A broker or name server answered with an error code.

    Args:
        code: the response code, one of RocketMQ's or ours (docs/formats/extensions.md).
        remark: the peer's text.
        address: `host:port` of the peer; "": unknown.
        action: what was asked, for the text.
        retriable: whether repeating the call can help, which depends on the code.
    """

    def __init__(self, code: int, remark: str, address: str = "", action: str = "", *, retriable: bool = False) -> None:
        super().__init__(code, remark, address, action)
        self.code, self.remark, self.address, self.action = code, remark, address, action
        self.retriable = retriable

    def __str__(self) -> str:
        where = f" from {self.address}" if self.address else ""
        doing = f" to {self.action}" if self.action else ""
        # A refused change of accounts: RocketMQ's sentence says in front that there was one, and this text has said it by then.
        reason = self.remark.rpartition(_JAVA_EXCEPTION)[2] or self.remark
        return f"code {self.code}{where}{doing}: {reason}"


_JAVA_PACKAGE = "org.apache.rocketmq.acl.common."
_JAVA_EXCEPTION = f"{_JAVA_PACKAGE}AclException: "


class AccessDenied(BrokerError):
    """Access control of a broker or name server refused the request. Repeating it does not help."""

    account = ""
    """Access key that the request was signed with; "": it was not signed."""

    def __str__(self) -> str:
        where = f"{self.address} refuses" if self.address else "refused"
        return f"{where} to {self.action or 'do this'}: {self.remark.removeprefix(_JAVA_PACKAGE)}. {self._remedy}"

    @property
    def _remedy(self) -> str:
        if not self.account:
            return (
                "The request was not signed: give access_key and secret_key, or acl_file, or set METAQ_ACL_FILE, or have this "
                "address added to the server's globalWhiteRemoteAddresses"
            )
        if "No acl config" in self.remark:
            return f"It was signed as {self.account}: check the access key, or have the account added to the server's ACL files"
        if "signature" in self.remark.lower():
            return f"It was signed as {self.account}: check its secret key, and whether it was changed at the server"
        return f"It was signed as {self.account}: have the right granted to this account in the server's ACL files"


class ClientError(MetaqError):
    """The client could not do what was asked."""


class NoRoute(ClientError):
    """No name server knows the topic, or none of its brokers is up."""

    retriable = True
    away = False
    """Whether the topic is there, and only a broker that leads is missing: one may come."""


class ConnectionFailed(ClientError):
    """A connection could not be made, or broke with requests outstanding."""

    retriable = True
    sent = True
    """Whether the request may have reached the peer."""


class UnknownOutcome(ConnectionFailed):
    """A change was sent, and its answer did not come: it may have been made."""


class NotOurs(ClientError):
    """A node that this process kept in ZooKeeper is gone, or is kept by another session."""


class RequestTimeout(ClientError):
    """No answer within the time given. Whether the request took effect is unknown."""

    retriable = True
    sent = True
    """Whether the request may have reached the peer."""


class SendFailed(ClientError):
    """All tries of a send failed. `attempts` holds one (broker, error text) per try, `text` what the error says."""

    retriable = True

    def __init__(self, text: str, attempts: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text, attempts)
        self.text, self.attempts = text, attempts

    def __str__(self) -> str:
        return self.text


class RowsNotSent(ClientError):
    """`send_arrow` ended before all rows were acknowledged. `cause` is the first fault.

    `acknowledged` rows are known to be stored. All rows before number `resume_at` are among them: sending the table
    again from there on loses none, and may store some twice.
    """

    def __init__(self, cause: Exception, acknowledged: int, resume_at: int) -> None:
        super().__init__(cause, acknowledged, resume_at)
        self.cause, self.acknowledged, self.resume_at = cause, acknowledged, resume_at
        self.retriable = getattr(cause, "retriable", False)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} rows are acknowledged, among them all before row {self.resume_at}; the others are not known to be "
            f"stored: {self.cause}"
        )


class BufferFull(ClientError):
    """More bytes wait for their acknowledgement than `max_pending_bytes` allows. Nothing was queued."""

    retriable = True


class OffsetOutOfRange(ClientError):
    """The queue no longer holds, or does not yet hold, the wanted offset.

    Args:
        queue: the `metaq.MessageQueue`.
        wanted: the QueueOffset that was asked for.
        kept: what the queue holds, [start, stop).
        remedy: what to do about it, for the text.
    """

    retriable = True

    def __init__(self, queue: object, wanted: int, kept: range, remedy: str = "") -> None:
        super().__init__(queue, wanted, kept, remedy)
        self.queue, self.wanted, self.kept, self.remedy = queue, wanted, kept, remedy

    def __str__(self) -> str:
        what = f"{self.queue} keeps [{self.kept.start}, {self.kept.stop}), wanted {self.wanted}"
        return f"{what}. {self.remedy}" if self.remedy else what


class MessagesLost(ClientError):
    """Messages that a reader was to read have left the log, or the log that held them is gone.

    Args:
        queue: the `metaq.MessageQueue`.
        lost: their QueueOffsets, [start, stop).
        remedy: what to do about it, for the text.
    """

    def __init__(self, queue: object, lost: range, remedy: str = "") -> None:
        super().__init__(queue, lost, remedy)
        self.queue, self.lost, self.remedy = queue, lost, remedy

    def __str__(self) -> str:
        what = f"{len(self.lost)} messages of {self.queue} are gone: offsets [{self.lost.start}, {self.lost.stop})"
        return f"{what}. {self.remedy}" if self.remedy else what


class TransactionEnded(ClientError):
    """The transaction has ended, and otherwise than is wanted now."""


class TransactionFailed(ClientError):
    """A transaction of several messages (`producer.atomic()`) was not completed. `text` says why, `transaction_id` is its
    `Atomic.id`, and `state` what is known of it:

    - "rolled back": nothing of it is or will be delivered.
    - "open": no commit was sent; nothing will be delivered, and brokers drop it by themselves.
    - "prepared": it waits for a decision.
    - "unknown": a commit was sent, and its outcome could not be asked for.

    For the last two ask `producer.outcome(error.transaction_id)` later, or decide by `producer.settle`.
    """

    def __init__(self, text: str, transaction_id: str, state: str) -> None:
        super().__init__(text, transaction_id, state)
        self.text, self.transaction_id, self.state = text, transaction_id, state
        self.retriable = state in {"rolled back", "open"}

    def __str__(self) -> str:
        return self.text


class XaError(ClientError):
    """A step of an XA transaction failed: `text` says why. `code` and `name` are JTA's: -4, XAER_NOTA.

    `in_doubt`: the server may have done the step all the same, for its answer is lost: after `recover` the transaction manager
    repeats it. `heuristic`: the branch was ended by hand, otherwise than by its transaction manager perhaps; `forget` it when that
    is settled.
    """

    def __init__(self, text: str, code: int, name: str, *, in_doubt: bool = False) -> None:
        super().__init__(text, code, name)
        self.text, self.code, self.name, self.in_doubt = text, code, name, in_doubt

    @property
    def heuristic(self) -> bool:
        """Whether the branch was ended by hand."""
        return 5 <= self.code <= 8

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.text}"


class StaleBatch(ClientError):
    """A numbered write is older than a committed one: another process has gone on as the same writer."""


class NotSupported(ClientError):
    """The broker does not know the request: it is a RocketMQ, or a MetaQ older than this client."""


class ClientClosed(ClientError):
    """The client was closed before or while the call ran."""


class ClientForked(ClientError):
    """The client was made in another process: connections do not survive `fork`. Make a new one in the child."""


NO_MEMORY = (
    "this server is out of memory, or of room for mappings: raise its limits (ulimit -v, vm.max_map_count) "
    "or give it more"
)
REMEDIES: Mapping[int, str] = {
    errno.EMFILE: "this server has too many open files: raise its limit (ulimit -n), every queue in use holds some",
    errno.ENFILE: "the server's machine has too many open files: raise fs.file-max",
    errno.ENOMEM: NO_MEMORY,
    errno.ENOSPC: "the server's disk is full: free some space, or keep messages for a shorter time (fileReservedTime)",
    errno.EDQUOT: "the quota of the server's disk is spent: raise it, or keep messages for a shorter time",
}
"""errno → what the system lacks, and what to do."""


def shortage(error: Exception) -> str:
    """Return the remedy of an error that means that the system has run out of something; "" for any other."""
    if isinstance(error, MemoryError):
        return NO_MEMORY
    remedy = REMEDIES.get(error.errno or 0) if isinstance(error, OSError) else None
    if remedy is None:
        return ""
    assert isinstance(error, OSError)
    where = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
    return f"{where}{remedy}"
