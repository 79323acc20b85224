"""Epochs in the log: each begins with a record in queue 0 of rmq_sys_METAQ_EPOCHS, whatever becomes of the file beside the log."""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import msgspec

from metaq.broker.log.appender import Appender
from metaq.broker.log.records import put_record
from metaq.errors import RemoteProtocolError
from metaq.model import properties as props
from metaq.model.leadership import Epoch
from metaq.model.topics.system import EPOCHS_TOPIC
from metaq.store.message_store import MessageStore
from metaq.wire.record import decode_record

log = logging.getLogger(__name__)

TAG: Final = "epoch"


def append_epoch(appender: Appender, epoch: Epoch, born_host: bytes) -> None:
    """Append the record with which an epoch begins. Raises Refused."""
    body = msgspec.json.encode(epoch)
    appender.put(
        [
            put_record(
                EPOCHS_TOPIC,
                0,
                body,
                {props.TAGS: TAG},
                flag=0,
                sys_flag=0,
                born_ms=epoch.since_ms,
                born_host=born_host,
            )
        ]
    )


def epochs_in(store: MessageStore) -> tuple[Epoch, ...]:
    """Return the epochs that begin in the log, the oldest first. What cannot be read is passed over, with a line in the log."""
    queue = store.reader.existing_queue(EPOCHS_TOPIC, 0)
    found: list[Epoch] = []
    for offset in range(queue.min_offset, queue.max_offset) if queue is not None else ():
        unit = queue.unit(offset) if queue is not None else None
        record = store.reader.record_at(unit.log_offset) if unit is not None else None
        epoch = None
        if record is not None:
            with contextlib.suppress(RemoteProtocolError, msgspec.DecodeError, msgspec.ValidationError):
                message = decode_record(record)
                if (message.topic, message.queue_offset) == (EPOCHS_TOPIC, offset):
                    epoch = msgspec.json.decode(message.body, type=Epoch)
        if epoch is None:
            log.error(
                "queue offset %d of queue 0 of topic %s, the beginning of an epoch, cannot be read",
                offset,
                EPOCHS_TOPIC,
            )
        else:
            found.append(epoch)
    return tuple(found)


def merged(kept: tuple[Epoch, ...], in_log: tuple[Epoch, ...]) -> tuple[Epoch, ...]:
    """Return the epochs of a log: those that were kept beside it, and those that it has itself."""
    known = {one.number: one for one in in_log} | {one.number: one for one in kept}
    return tuple(known[number] for number in sorted(known))
