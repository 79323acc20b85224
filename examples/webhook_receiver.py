"""A receiver of webhooks (docs/webhooks.md), with nothing but the standard library: no MetaQ is needed on this machine.

It verifies each signature, and handles a message once however often it is posted: its id is in the transaction of its row.

metaq up &
metaq webhook secret orders.secret
python examples/webhook_receiver.py orders.secret 8000 &
metaq webhook run orders-hook --url http://127.0.0.1:8000/ --topics orders --secret-files orders.secret --allow-networks 127.0.0.0/8 &
metaq send orders hello
"""

import base64
import hashlib
import hmac
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BODY_BYTES_MAX = 8 << 20
TOLERANCE_SECONDS = 300


def is_genuine(secret: bytes, fields: dict[str, str], body: bytes, now: float) -> bool:
    """Return whether a request is from whom has the secret, and not an old one (https://www.standardwebhooks.com)."""
    identity, told = fields.get("webhook-id", ""), fields.get("webhook-timestamp", "")
    if not told.isdecimal() or abs(now - int(told)) > TOLERANCE_SECONDS:
        return False
    digest = hmac.digest(secret, f"{identity}.{told}.".encode() + body, hashlib.sha256)
    wanted = b"v1," + base64.b64encode(digest)
    # Several, while one secret is replaced by another.
    return any(hmac.compare_digest(wanted, one.encode()) for one in fields.get("webhook-signature", "").split())


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    secret = b""
    database = "received.db"

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", "0"))
        if size > BODY_BYTES_MAX:
            self.close_connection = True
            self.answer(413)
            return
        body = self.rfile.read(size)
        fields = {name.lower(): value for name, value in self.headers.items()}
        if not is_genuine(self.secret, fields, body, time.time()):
            self.answer(401)
            return
        connection = sqlite3.connect(self.database, timeout=10)
        try:
            with connection:  # commits both rows, or neither
                connection.execute("INSERT INTO handled VALUES (?)", (fields["webhook-id"],))
                connection.execute("INSERT INTO orders VALUES (?)", (body,))
        except sqlite3.IntegrityError:
            pass  # It was handled before: 200 again, or it would come for ever.
        finally:
            connection.close()
        self.answer(200)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing for each request."""


def main(secret_file: str, port: str, database: str = "received.db") -> None:
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE IF NOT EXISTS orders (item BLOB)")
    connection.close()
    Receiver.secret = base64.b64decode(Path(secret_file).read_text().strip().removeprefix("whsec_"))
    Receiver.database = database
    with ThreadingHTTPServer(("127.0.0.1", int(port)), Receiver) as server:
        print(f"receives at http://127.0.0.1:{server.server_address[1]}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) not in {3, 4}:
        sys.exit("usage: webhook_receiver.py SECRET_FILE PORT [DATABASE]; `metaq webhook secret FILE` makes the file")
    main(*sys.argv[1:])
