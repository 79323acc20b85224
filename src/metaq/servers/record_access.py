"""Who may read a message that a request names by its place in the log."""

from __future__ import annotations

from metaq.broker.broker import Broker
from metaq.model import properties as props
from metaq.model.access import Action, Caller
from metaq.model.topics.system import HALF_TOPIC, OUR_PREFIX, SCHEDULE_TOPIC
from metaq.wire.record import decode_record


def check_record(broker: Broker, caller: Caller, log_offset: int) -> None:
    """Check that the caller may read the message at a LogOffset, whose topic no header names. Raises Refused."""
    gatekeeper = broker.gatekeeper
    if gatekeeper.unguarded or gatekeeper.trusts(caller):
        return
    message = decode_record(broker.lookup.record(log_offset))
    topic = message.topic
    if topic.startswith(OUR_PREFIX):  # of all topics together, such as a chunk of a staged transaction
        gatekeeper.check(caller, Action.ADMINISTER, f"a message of {topic}")
    elif topic in {SCHEDULE_TOPIC, HALF_TOPIC}:
        topic = message.properties.get(props.REAL_TOPIC, topic)
    gatekeeper.check_uncovered(caller, Action.SUBSCRIBE, topic)
