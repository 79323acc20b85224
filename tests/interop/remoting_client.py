"""A client of the remoting protocol that says what a test has it say, to any broker: one blocking connection."""

from __future__ import annotations

import itertools
import socket
from collections import deque
from typing import Self

from metaq.model import Heartbeat
from metaq.model import properties as props
from metaq.model.message import SysFlag
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from metaq.wire.record import decode_record
from tests.support import PATIENCE, eventually

GROUP = "payers"


class RemotingClient:
    """Requests and answers as they are; what the broker asks is kept in `asked`."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE)
        self._inbox, self._numbers = Connection(), itertools.count(1)
        self._answers: dict[int, Command] = {}
        self.asked: deque[Command] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, code: int, header: headers.Header | None = None, body: bytes = b"") -> Command:
        number = self.tell(code, header, body, oneway=False)
        while number not in self._answers:
            self._receive()
        return self._answers.pop(number)

    def tell(self, code: int, header: headers.Header | None = None, body: bytes = b"", *, oneway: bool = True) -> int:
        command = request(code, header, body, oneway=oneway)
        command.opaque, command.version, command.language = next(self._numbers), 409, "JAVA"
        self._socket.sendall(encode(command))
        return command.opaque

    def _receive(self) -> None:
        data = self._socket.recv(1 << 16)
        assert data, "the broker has closed the connection"
        self._inbox.receive_data(data)
        while (command := self._inbox.next_command()) is not None:
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.asked.append(command)

    # -- what transactions need
    def produce(self) -> None:
        """Be a member of the producer group."""
        self.ask(RequestCode.HEART_BEAT, None, bodies.heartbeat(Heartbeat(f"client@{id(self)}", (), (GROUP,))))

    def half(self, topic: str, body: str, unique_id: str) -> headers.SendReplyHeader:
        """Send a half message. Returns its answer."""
        pairs = {
            props.UNIQUE_ID: unique_id, props.WAIT: "true", props.TRANSACTION_PREPARED: "true",
            props.PRODUCER_GROUP: GROUP, props.TAGS: "paid",
        }  # fmt: skip
        header = headers.SendHeader(
            producer_group=GROUP, topic=topic, queue_id=0, sys_flag=int(SysFlag.PREPARED), born_ms=_now_ms(),
            properties=props.join(pairs),
        )  # fmt: skip
        answer = self.ask(RequestCode.SEND_MESSAGE_V2, header, body.encode())
        assert answer.code == 0, answer.remark
        return headers.SendReplyHeader.from_ext(answer.ext)

    def end(self, slot: int, log_offset: int, unique_id: str, *, commit: bool) -> None:
        """End a transaction, and make sure that the broker has taken it: RocketMQ's answers ends in order."""
        outcome = int(SysFlag.COMMITTED if commit else SysFlag.ROLLED_BACK)
        header = headers.EndTransactionHeader(
            producer_group=GROUP, half_queue_offset=slot, log_offset=log_offset, outcome=outcome, message_id=unique_id
        )
        answer = self.ask(RequestCode.END_TRANSACTION, header)
        assert answer.code == 0, answer.remark

    def end_sent(self, sent: headers.SendReplyHeader, *, commit: bool) -> None:
        """End the transaction of a half message by the answer to its send."""
        self.end(sent.queue_offset, int(sent.message_id[-16:], 16), "", commit=commit)

    def wait_for_check(self) -> Command:
        """The next check that comes."""
        while True:
            while not self.asked:
                self._receive()
            command = self.asked.popleft()
            if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                return command

    def answer_checks(self, wanted: set[str], *, commit: bool) -> None:
        """Take checks, and commit what they ask about or roll it back, until each of these half messages was asked about."""
        missing = set(wanted)
        while missing:
            check = self.wait_for_check()
            header, half = headers.CheckTransactionHeader.from_ext(check.ext), decode_record(check.body)
            missing.discard(half.body.decode())
            self.end(header.half_queue_offset, header.log_offset, header.message_id or "", commit=commit)

    def bodies(self, topic: str) -> list[str]:
        """All that queue 0 of a topic holds."""
        found: list[str] = []
        while True:
            header = headers.PullHeader(
                group=GROUP, topic=topic, queue_id=0, queue_offset=len(found), max_messages=32, sys_flag=4, suspend_ms=0,
                commit_offset=0, subscription="*", sub_version=0, expression_type="TAG",
            )  # fmt: skip
            answer = self.ask(RequestCode.PULL_MESSAGE, header)
            if answer.code != 0:
                return found
            place = 0
            while place < len(answer.body):
                found.append(decode_record(answer.body, place).body.decode())
                place += int.from_bytes(answer.body[place : place + 4], "big")

    def wait_for(self, topic: str, wanted: set[str]) -> list[str]:
        """What the topic's queue 0 holds, as soon as all of that is there."""

        def probe() -> list[str] | None:
            found = self.bodies(topic)
            return found if wanted <= set(found) else None

        found = eventually(probe, what=f"{wanted} in {topic}")
        assert found is not None
        return found


def _now_ms() -> int:
    from metaq.clock import SYSTEM

    return SYSTEM.now_ms()
