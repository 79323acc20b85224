"""Whether a server uses TLS at all; what it needs for that is loaded only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from metaq.tls_options import NO_TLS, TlsOptions

if TYPE_CHECKING:
    from metaq.app.tls.running import RunningTls


def tls_of(options: TlsOptions, call_soon: Callable[[Callable[[], None]], object]) -> RunningTls | None:
    """Return the TLS that the options ask for; None: they ask for none. Raises ConfigError: file and reason.

    Args: call_soon: brings a call from another thread to the event loop.
    """
    if options == NO_TLS:
        return None
    from metaq.app.tls.running import RunningTls  # OpenSSL is a third of what a server loads at its start

    return RunningTls(options, call_soon)
