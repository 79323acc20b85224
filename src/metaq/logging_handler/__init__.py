"""Log records of the standard `logging` as messages of a topic (docs/logging.md).

    logging.getLogger().addHandler(metaq.MetaQHandler("localhost:9876", service="checkout"))

`formats` makes bytes of records, `buffer` holds a bounded number of them, `sender` is the thread that sends them, `handler` is
what `logging` sees.
"""

from metaq.logging_handler.formats import JsonFormatter
from metaq.logging_handler.handler import MetaQHandler

__all__ = ["JsonFormatter", "MetaQHandler"]
