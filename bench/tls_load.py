"""A load generator that speaks plain text or TLS, so that the two are compared with the same client.

    python bench/tls_load.py send ADDRESS --tls --conns 4 --outstanding 64 --count 100000 --body 100
    python bench/tls_load.py handshakes ADDRESS --tls --rate 200 --seconds 5
    python bench/tls_load.py waits ADDRESS --seconds 5

Prints one JSON object. In Python, with OpenSSL: it encrypts many requests at once, as it reads many answers, so that the
server is the slower side.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import ssl
import struct
import time

from metaq.model.properties import join
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import encode, request

READ_BYTES = 256 * 1024
TOPIC = "tls"
DONE = b'"code":0,'
"""In the answer to each send that was stored, of our servers and of RocketMQ's."""


def frame(body: int) -> bytes:
    """One send to queue 0."""
    properties = join({"UNIQ_KEY": "7F00000100002A9F0000000000000001", "WAIT": "true"})
    born_ms = int(time.time() * 1000)
    header = headers.SendHeader(producer_group="bench", topic=TOPIC, queue_id=0, properties=properties, born_ms=born_ms)
    return encode(request(RequestCode.SEND_MESSAGE_V2, header, bytes(body)))


def connect(address: str, context: ssl.SSLContext | None) -> socket.socket:
    host, port = address.rsplit(":", 1)
    raw = socket.create_connection((host, int(port)))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(raw, server_hostname=host) if context is not None else raw


class Connection:
    """One connection with so many sends under way."""

    def __init__(self, address: str, context: ssl.SSLContext | None, data: bytes, outstanding: int, count: int) -> None:
        self.socket = connect(address, context)
        self._data, self._left, self._to_come = data, count, count
        self._buffer, self._filled = bytearray(2 * READ_BYTES), 0
        self._send(outstanding)

    def _send(self, number: int) -> None:
        number = min(number, self._left)
        if number:
            self._left -= number
            self.socket.sendall(self._data * number)

    def again(self) -> None:
        """Send one more."""
        self._left = self._to_come = 1
        self._send(1)

    def read(self) -> bool:
        """Take answers and send as many again. Returns whether all have come. Raises RuntimeError: a send was refused."""
        view = memoryview(self._buffer)
        self._filled += self.socket.recv_into(view[self._filled : self._filled + READ_BYTES])
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() and self._filled < READ_BYTES:
            self._filled += self.socket.recv_into(view[self._filled : self._filled + READ_BYTES])
        start, came, length = 0, 0, struct.Struct(">i")
        while start + 4 <= self._filled:
            size = 4 + length.unpack_from(self._buffer, start)[0]
            if start + size > self._filled:
                break
            start += size
            came += 1
        if self._buffer.count(DONE, 0, start) != came:
            raise RuntimeError(f"a send was refused: {bytes(self._buffer[: min(start, 2000)])!r}")
        self._buffer[: self._filled - start] = self._buffer[start : self._filled]
        self._filled -= start
        self._to_come -= came
        self._send(came)
        return not self._to_come


def send(arguments: argparse.Namespace, context: ssl.SSLContext | None) -> dict[str, float]:
    """Send `count` messages; returns how many a second."""
    data = frame(arguments.body)
    each = arguments.count // arguments.conns
    Connection(arguments.address, context, data, 1, 1).read()  # makes the topic
    began = time.perf_counter()
    poll, by_number = select.poll(), {}
    for _ in range(arguments.conns):
        one = Connection(arguments.address, context, data, arguments.outstanding, each)
        by_number[one.socket.fileno()] = one
        poll.register(one.socket, select.POLLIN)
    while by_number:
        for number, _ in poll.poll():
            if number in by_number and by_number[number].read():
                poll.unregister(number)
                by_number.pop(number).socket.close()
    seconds = time.perf_counter() - began
    return {"requests_per_s": each * arguments.conns / seconds, "us": seconds / each * 1e6}


def handshakes(arguments: argparse.Namespace, context: ssl.SSLContext | None) -> dict[str, float]:
    """Connect `rate` times a second, and close; returns how many there were."""
    os.nice(19)  # others have machines of their own: here they take what server and bystander leave
    began, number = time.perf_counter(), 0
    while (now := time.perf_counter() - began) < arguments.seconds:
        if number < now * arguments.rate:
            connect(arguments.address, context).close()
            number += 1
        else:
            time.sleep(0.0005)
    return {"per_s": number / arguments.seconds}


def waits(arguments: argparse.Namespace, context: ssl.SSLContext | None) -> dict[str, float]:
    """Send one message after the other, 500 a second; returns what they wait, in microseconds."""
    data, seen = frame(arguments.body), []
    one = Connection(arguments.address, context, data, 1, 1)
    one.read()
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < arguments.seconds:
        one.again()
        while not one.read():
            pass
        seen.append(time.perf_counter() - now)
        time.sleep(0.002)
    seen.sort()
    return {"p50_us": seen[len(seen) // 2] * 1e6, "p99_us": seen[len(seen) * 99 // 100] * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["send", "handshakes", "waits"])
    parser.add_argument("address")
    parser.add_argument("--tls", action="store_true", help="with TLS; the certificate is not verified")
    for name, default in (
        ("conns", 1),
        ("outstanding", 1),
        ("count", 10_000),
        ("body", 100),
        ("rate", 200),
        ("seconds", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if arguments.tls else None
    if context is not None:  # the server makes its certificate itself
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    act = {"send": send, "handshakes": handshakes, "waits": waits}[arguments.what]
    print(json.dumps(act(arguments, context)))


if __name__ == "__main__":
    main()
