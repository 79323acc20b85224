"""Log records of the standard `logging` as messages of a topic (docs/logging.md).

    logging.getLogger().addHandler(metaq.MetaQHandler("localhost:9876", service="checkout"))

`formats` encodes records, `buffer` is a bounded buffer of them, `sender` is the thread that sends them, `handler` is the handler
for `logging`.
"""

from metaq.logging_handler.formats import JsonFormatter
from metaq.logging_handler.handler import MetaQHandler

__all__ = ["JsonFormatter", "MetaQHandler"]
