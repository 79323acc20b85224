"""Handles each message once: its key is recorded in the transaction of the handler's own writes (docs/outbox.md).

    seen = Idempotence("billing")

    @seen.handler(sessionmaker(engine))
    def bill(message, session):
        session.add(Invoice(...))

    consumer.run(bill)

`keys` says which messages are one, `table` has the statements, `handling` is the decorator.
"""

from metaq.idempotence.handling import Idempotence
from metaq.idempotence.keys import message_key

__all__ = ["Idempotence", "message_key"]
"""What users import."""
