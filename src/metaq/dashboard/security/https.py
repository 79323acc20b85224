"""HTTPS of the dashboard: its certificate, read again when its file changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from metaq.errors import ConfigError
from metaq.net.tls.contexts import ServerFiles, prove, server_context
from metaq.net.tls.server import Mode, ServerTls

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""Interval in which the files are looked at: whoever renews a certificate only exchanges them."""


class Https:
    """The TLS of the dashboard's port; plain text is refused there.

    Args: cert, key: PEM files, the certificate with its chain.
    Raises ConfigError: file and reason.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._files = ServerFiles(cert, key)
        self._seen = self._stamps()
        prove(self._files)
        self.tls = ServerTls(Mode.ENFORCING, server_context(self._files))

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (self._files.cert, self._files.key):
            try:
                stat = Path(path).stat()
            except OSError as error:
                raise ConfigError(f"the dashboard's certificate: {path} cannot be read: {error.strerror}") from None
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)

    def look(self) -> None:
        """Take the files if they have changed. Those that are wrong are told of in the log, and the ones before stay. In a thread."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return
            self._seen = stamps
            prove(self._files)
            context = server_context(self._files)
        except ConfigError as error:
            log.warning("the dashboard keeps its certificate: %s", error)
            return
        self.tls.exchange(context)
        log.info("the dashboard has another certificate, of %s", self._files.cert)

    def close(self) -> None:
        """End the handshakes' thread."""
        self.tls.close()
