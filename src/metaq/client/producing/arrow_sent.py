"""What became of rows of Arrow tables. Apart from `arrow_sending`, which loads pyarrow."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from metaq.model import SendStatus


class ArrowSent(Struct, frozen=True):
    """The result of a `send_arrow` whose rows are all acknowledged."""

    rows: int
    """Rows that were sent, each as a message."""
    requests: int
    """Requests that they were sent in, each with up to a batch of them."""
    statuses: Mapping[SendStatus, int]
    """Rows by what their broker promises; all are SEND_OK where neither a disk nor a replica was too slow."""
