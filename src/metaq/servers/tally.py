"""Counts of requests and failures that the protocol servers of one process share, for its metrics."""

from __future__ import annotations

from typing import Final

from metaq.errors import Reason, Refused

UNKNOWN: Final = -1
"""Stands for request codes that have no handler: clients may send four billion of them."""


class Tally:
    """Counts since the start.

    `requests`: by code of remoting, those that were handled one by one; plain sends and pulls are counted where they are stored and
    found. `failures`: by reason, over all protocols that count here; None: faults, and requests that cannot be read. `http`: requests
    of HTTP by name of the operation and status.
    """

    def __init__(self) -> None:
        self.requests, self.failures = dict[int, int](), dict[Reason | None, int]()
        self.http = dict[tuple[str, int], int]()

    def asked(self, code: int) -> None:
        """Count a request of this code."""
        self.requests[code] = self.requests.get(code, 0) + 1

    def failed(self, error: Exception) -> None:
        """Count a request that is answered with an error."""
        reason = error.reason if isinstance(error, Refused) else None
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def answered(self, operation: str, status: int) -> None:
        """Count an answer of HTTP. Args: operation: its name; "": there is none."""
        key = operation, status
        self.http[key] = self.http.get(key, 0) + 1
