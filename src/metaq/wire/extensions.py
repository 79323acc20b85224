"""Extensions of RocketMQ 4.9's protocol: marks, levels and bodies. docs/formats/extensions.md has each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from metaq.errors import BadRequest
from metaq.model.acl.judgement import AccessExplanation
from metaq.model.leadership import ReplicaState
from metaq.model.quota import QuotaUse
from metaq.model.reload import ReloadedFile
from metaq.model.scrub import RANGES_MAX, LogChecksums, Mended, ScrubState
from metaq.model.servers.identity import ServerIdentity
from metaq.model.servers.log_line import LogLine
from metaq.model.servers.option_state import OptionState
from metaq.model.upkeep.cleaning import Cleanable, TopicTrim

T = TypeVar("T")

MARK_FIELD: Final = "METAQ"
"""Ext field of heartbeat answers, and key of the runtime table (28), by which clients know a MetaQ broker and its
level."""
MEMBER_WANTS: Final = "metaqSubscriptions"
"""Field of a member in the answer to 203, if the members of the group have different filters: topic → filter."""
KEEP_SECONDS: Final = "metaqKeepSeconds"
"""Field of a consumer in a heartbeat: how long the broker keeps its queues for it when it is gone, seconds."""
WAIT_FIELD: Final = "metaqWaitMs"
"""Ext field of any answer to a client of ours: how long it is to wait before its next request to this broker, ms (quotas)."""
RELAYED_FIELD: Final = "metaqRelayed"
"""Ext field of a request that a broker which has stepped down relays to its leader: `host:port` of the client. Such a request is
relayed once, and no further. And of the answer of a broker that does not lead, and so has not carried it out: `NOT_LEADING`. IDENTIFY
(30021) with this field is answered with it: `LEADING` or `NOT_LEADING`."""
NOT_LEADING: Final = "not leading"
LEADING: Final = "leading"
IN_DOUBT_MARK: Final = "[IN_DOUBT]"
"""Begins the remark of an error (code 1) after which it is not known whether the request was carried out: the broker may have been
replaced meanwhile."""
NOT_LEADING_MARK: Final = "[NOT_LEADING]"
"""Begins the remark of a refusal by a broker that does not lead, or may have been replaced: another one may take the request soon."""
LEVEL: Final = 4
"""Level of this release. Raised by one with every extension that a client may use only where the broker has it."""
KEEPING_LEVEL: Final = 2
"""First level at which a broker keeps queues (`KEEP_SECONDS`)."""
STAGING_LEVEL: Final = 3
"""First level with staged transactions (30000 to 30006)."""
LARGE_CHUNKS_LEVEL: Final = 4
"""First level at which a chunk of one message may be as large as a message, messages in chunks may have empty bodies,
and may go to retry topics."""
OUR_MARK: Final[Mapping[str, str]] = {MARK_FIELD: str(LEVEL)}


def level_of(fields: Mapping[str, str]) -> int:
    """Return the level of the broker that sent these ext fields or this runtime table; 0 for a RocketMQ."""
    # A mark that cannot be read counts as none: then only RocketMQ's own protocol is spoken.
    text = fields.get(MARK_FIELD, "0")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def explanation(made: AccessExplanation) -> bytes:
    """Encode the answer to EXPLAIN_ACCESS (30020)."""
    return msgspec.json.encode(made)


def explanation_of(body: bytes | memoryview) -> AccessExplanation:
    """Decode the answer to EXPLAIN_ACCESS. Raises BadRequest."""
    return _decoded(body, AccessExplanation, "the body is no explanation")


def reloaded(outcome: ReloadedFile) -> bytes:
    """Encode the answer to RELOAD (30007)."""
    return msgspec.json.encode(outcome)


def server_identity(identity: ServerIdentity) -> bytes:
    """Encode the answer to IDENTIFY (30021)."""
    return msgspec.json.encode(identity)


def server_identity_of(body: bytes | memoryview) -> ServerIdentity:
    """Decode the answer to IDENTIFY. Raises BadRequest."""
    return _decoded(body, ServerIdentity, "the body is no identity of a server")


def option_states(states: list[OptionState]) -> bytes:
    """Encode the answer to OPTIONS (30022)."""
    return msgspec.json.encode(states)


def option_states_of(body: bytes | memoryview) -> list[OptionState]:
    """Decode the answer to OPTIONS. Raises BadRequest."""
    return _decoded(body, list[OptionState], "the body is no list of options")


def log_lines(lines: list[LogLine]) -> bytes:
    """Encode the answer to LOG_LINES (30026)."""
    return msgspec.json.encode(lines)


def log_lines_of(body: bytes | memoryview) -> list[LogLine]:
    """Decode the answer to LOG_LINES. Raises BadRequest."""
    return _decoded(body, list[LogLine], "the body is no list of lines")


def closed_partitions(numbers: Iterable[int]) -> bytes:
    """Encode the answer to CLOSE_PARTITIONS (30010): the partitions that are closed now."""
    return msgspec.json.encode(sorted(numbers))


def closed_partitions_of(body: bytes | memoryview) -> list[int]:
    """Decode the answer to CLOSE_PARTITIONS. Raises BadRequest."""
    return _decoded(body, list[int], "the body is no list of partitions")


def reloaded_of(body: bytes | memoryview) -> ReloadedFile:
    """Decode the answer to RELOAD. Raises BadRequest."""
    return _decoded(body, ReloadedFile, "the body is no outcome of a reload")


def topic_trim(trim: TopicTrim) -> bytes:
    """Encode the answer to TRIM_TOPIC (30023)."""
    return msgspec.json.encode(trim)


def topic_trim_of(body: bytes | memoryview) -> TopicTrim:
    """Decode the answer to TRIM_TOPIC. Raises BadRequest."""
    return _decoded(body, TopicTrim, "the body is no trim of a topic")


def cleanable(found: Cleanable) -> bytes:
    """Encode the answer to PREVIEW_CLEANING (30024)."""
    return msgspec.json.encode(found)


def cleanable_of(body: bytes | memoryview) -> Cleanable:
    """Decode the answer to PREVIEW_CLEANING. Raises BadRequest."""
    return _decoded(body, Cleanable, "the body is no preview of a cleaning")


def quotas(uses: list[QuotaUse]) -> bytes:
    """Encode the answer to QUOTAS (30018)."""
    return msgspec.json.encode(uses)


def quotas_of(body: bytes | memoryview) -> list[QuotaUse]:
    """Decode the answer to QUOTAS. Raises BadRequest."""
    return _decoded(body, list[QuotaUse], "the body is no list of quotas")


def replica_state(state: ReplicaState) -> bytes:
    """Encode the answer to REPLICA_STATE, PROMOTE and STEP_DOWN (30011 to 30013)."""
    return msgspec.json.encode(state)


def replica_state_of(body: bytes | memoryview) -> ReplicaState:
    """Decode the answer to REPLICA_STATE, PROMOTE or STEP_DOWN. Raises BadRequest."""
    state = _decoded(body, ReplicaState, "the body is no state of a replica")
    number, start = 0, 0
    for epoch in state.epochs:  # a slave cuts its log by them
        if epoch.number <= number or epoch.start < start:
            raise BadRequest(f"epoch {epoch.number} at log offset {epoch.start} comes behind epoch {number} at {start}")
        number, start = epoch.number, epoch.start
    return state


def log_checksums(told: LogChecksums) -> bytes:
    """Encode the answer to LOG_CHECKSUMS (30015)."""
    return msgspec.json.encode(told)


def log_checksums_of(body: bytes | memoryview) -> LogChecksums:
    """Decode the answer to LOG_CHECKSUMS. Raises BadRequest."""
    told = _decoded(body, LogChecksums, "the body is no checksums of a log")
    if told.file_bytes <= 0 or told.log_min < 0 or told.log_flushed < 0 or len(told.checksums) > RANGES_MAX:
        raise BadRequest(
            f"the body is no checksums of a log: {len(told.checksums)} ranges of a log from {told.log_min} to "
            f"{told.log_flushed}, with files of {told.file_bytes} bytes"
        )
    return told


def mended(outcome: Mended) -> bytes:
    """Encode the answer to REPAIR_LOG (30017)."""
    return msgspec.json.encode(outcome)


def mended_of(body: bytes | memoryview) -> Mended:
    """Decode the answer to REPAIR_LOG. Raises BadRequest."""
    return _decoded(body, Mended, "the body is no outcome of a repair")


def scrub_state(state: ScrubState) -> str:
    """Encode the value of `metaqScrub` in the runtime information (28)."""
    return msgspec.json.encode(state).decode()


def scrub_state_of(text: str) -> ScrubState:
    """Decode the value of `metaqScrub`. Raises BadRequest."""
    return _decoded(text, ScrubState, "metaqScrub tells no comparison of logs")


def _decoded(data: bytes | memoryview | str, kind: type[T], what: str) -> T:
    """Decode JSON of a kind. Raises BadRequest: it is none; `what`: the sentence that says so."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{what}: {error}") from None
