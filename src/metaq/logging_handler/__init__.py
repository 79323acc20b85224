"""Log records of the standard `logging` as messages of a topic (docs/logging.md).

    logging.getLogger().addHandler(metaq.MetaQHandler("localhost:9876", service="checkout"))

`formats` encodes records, `buffer` is a bounded buffer of them, `sender` is the thread that sends them, `base` is what handlers for
`logging` share; `handler` has that for brokers of RocketMQ's protocol, `metaq1` that for servers of MetaQ 1.x, which loads the
client of MetaQ 1.x and is therefore not imported here.
"""

from metaq.logging_handler.formats import JsonFormatter
from metaq.logging_handler.handler import MetaQHandler

__all__ = ["JsonFormatter", "MetaQHandler"]
