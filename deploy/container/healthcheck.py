"""The health check of the image: exit code 0 when the server of this container serves clients, 1 when it does not, with the reason.

It asks /health/ready at METAQ_HEALTH_HOST (127.0.0.1) and METAQ_HEALTH_PORT (8120), the server's httpBindAddress and httpPort. `live` as the argument
asks whether the process works, which it also does while it replays its log. Standard library alone: it runs every ten seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

SECONDS = 4.0
"""Below the timeout in the Containerfile, so that the reason is told."""


def asked(host: str, port: int, path: str) -> tuple[int, str]:
    """Return status and text of a page. Raises OSError or HTTPException: there is no answer."""
    try:
        return _asked(http.client.HTTPConnection(host, port, timeout=SECONDS), path)
    except (http.client.BadStatusLine, ConnectionResetError):
        # With tls.server.mode=enforcing. Whose certificate it is, is not asked: this is the same machine.
        unverified = ssl._create_unverified_context()  # noqa: S323, SLF001
        return _asked(http.client.HTTPSConnection(host, port, timeout=SECONDS, context=unverified), path)


def _asked(connection: http.client.HTTPConnection, path: str) -> tuple[int, str]:
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(4096).decode("utf-8", "replace")
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    path = "/health/" + (arguments[0] if arguments else "ready")
    host, port = os.environ.get("METAQ_HEALTH_HOST", "127.0.0.1"), int(os.environ.get("METAQ_HEALTH_PORT", "8120"))
    try:
        status, text = asked(host, port, path)
    except (OSError, http.client.HTTPException) as error:
        print(f"{host}:{port}{path}: {error!r}: is httpPort={port} set? METAQ_HEALTH_PORT names another port")
        return 1
    print(text.strip())
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
