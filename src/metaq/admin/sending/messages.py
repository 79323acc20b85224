"""One message that an operator sends, by the same path as a producer's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.shared.core import ClientCore
from metaq.client.shared.sending import Choose, Sender, SendRules
from metaq.errors import ConfigError
from metaq.model import Message, MessageQueue, SendReceipt
from metaq.model import properties as props

GROUP: Final = "TOOLS_PRODUCER"
"""Producer group of what operators send."""
SEND_SECONDS: Final = 5.0


async def send(
    core: ClientCore,
    message: Message,
    *,
    queue: MessageQueue | None = None,
    more: Mapping[str, str] | None = None,
    seconds: float = SEND_SECONDS,
) -> SendReceipt:
    """Send a message to a topic that is there, and wait until it is stored. Returns where it is.

    Args:
        queue: None: any.
        more: properties of the system beside those of the message.
    Raises: NoRoute: there is no such topic, so that none is made of a mistyped name. ConfigError: it cannot be written to, or has no
        such queue. SendFailed; BrokerError: it is refused.
    """
    route = await core.routes.route(message.topic, fresh=True)
    writable = route.writable()
    if not writable:
        raise ConfigError(f"topic {message.topic} has no queue that can be written to now")
    if queue is not None and queue not in writable:
        raise ConfigError(f"{queue} cannot be written to; queues are {', '.join(map(str, writable[:16]))}")
    message_id = core.id_prefixes.next().decode() + "0000"
    text = message.property_text(message_id)
    if more:
        text = props.PAIR_END.join((text, props.join(more)))
    if len(text.encode()) > props.PROPERTIES_BYTES_MAX:
        raise ConfigError(f"tag, keys and properties have more than {props.PROPERTIES_BYTES_MAX} bytes together")
    choose: Choose | None = None if queue is None else lambda _queues: queue
    outgoing = Outgoing(message.topic, message.body, flag=message.flag, properties=text)
    stored = await Sender(core, GROUP, SendRules()).send(outgoing, seconds, choose)
    return SendReceipt(message_id, stored.queue, stored.offset, stored.status, stored.offset_ids)
