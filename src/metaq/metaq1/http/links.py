"""Requests to a gateway, in place of the connection that other factories have to a server: the same commands go out and the same
answers come back, so that producers and consumers need not know."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from metaq.errors import ClientClosed, ConnectionFailed
from metaq.metaq1.conversation.pipeline import ANSWER_BYTES_MAX, Make
from metaq.metaq1.http.config import HttpClientConfig
from metaq.metaq1.shared.links import ConnectionPace, Link, Links
from metaq.model.acl.secret import Secret
from metaq.net.tls.contexts import ClientFiles, client_context
from metaq.wire.metaq1.commands import (
    Answer,
    Code,
    Command,
    GetLine,
    OffsetLine,
    PutLine,
    ResultLine,
    TooLong,
    ValueLine,
)

_FIELDS: Final = {"accept-encoding": "identity", "user-agent": "metaq"}
"""Frames are taken as they are: what is unpacked has no bound."""


def opened(config: HttpClientConfig) -> httpx.AsyncClient:
    """In the loop: return what keeps the connections of one factory. Raises ConfigError: `ca_file`."""
    assert isinstance(config.secret_key, Secret), "it is made one"
    limits = httpx.Limits(
        max_connections=config.max_connections, max_keepalive_connections=config.max_connections, keepalive_expiry=config.keep_alive
    )  # fmt: skip
    tls = config.address.startswith("https:")
    return httpx.AsyncClient(
        auth=(config.access_key, config.secret_key.reveal()) if config.access_key else None,
        headers=_FIELDS,
        limits=limits,
        timeout=httpx.Timeout(None, connect=config.connect_timeout),
        verify=client_context(ClientFiles(ca=config.ca_file)) if tls else False,
        trust_env=False,
    )


def path_of(command: Command, broker_id: int) -> tuple[str, str, dict[str, str | int], bytes | None]:
    """Return method, path, parameters and body of a command's request. The broker's id is for what balances load."""
    query: dict[str, str | int]
    match command:
        case PutLine(topic=topic, partition=partition, body=body):
            query = {"topic": topic, "partition": partition, "flag": command.flag, "length": len(body)}
            return "POST", f"/put/{broker_id}", {**query, "checksum": command.checksum}, body
        case GetLine(topic=topic, partition=partition):
            query = {"topic": topic, "partition": partition, "offset": command.offset, "group": command.group}
            return "GET", f"/get/{broker_id}", {**query, "maxsize": command.max_bytes}, None
        case OffsetLine(topic=topic, partition=partition):
            query = {"topic": topic, "partition": partition, "offset": command.offset, "group": command.group}
            return "GET", f"/offset/{broker_id}", query, None
    raise AssertionError(f"the gateway of MetaQ 1.x has no {command!r:.40}")


class Progress:
    """How far a request has come. `sent`: the server may have it."""

    def __init__(self) -> None:
        self.sent = False

    async def trace(self, event: str, _details: object) -> None:
        """Take note of what the library does."""
        self.sent = self.sent or event.endswith(".send_request_headers.started")


class HttpLink(Link):
    """The way to one broker behind a URL."""

    def __init__(
        self,
        address: str,
        pace: ConnectionPace,
        client: httpx.AsyncClient,
        slots: asyncio.Semaphore,
        connect_seconds: float,
    ) -> None:
        """
        Args:
            address: URL, a slash, and the broker's id.
            client: sends.
            slots: of the connections of all links.
            connect_seconds: that it takes to connect, at most.
        """
        self._client, self._slots, self._connect_seconds = client, slots, connect_seconds
        base, _, number = address.rpartition("/")
        self._base, self._broker_id = base, int(number)
        super().__init__(address, address, pace)

    def start(self) -> None:
        """Connect to nothing: a request does."""

    async def ask(self, make: Make, action: str, timeout: float, number: int | None = None) -> Answer | TooLong:
        del number  # no transaction comes this way
        command, progress = make(0), Progress()
        assert not isinstance(command, bytes), "nobody writes lines here"
        if self._closed:
            raise self._gone()
        try:
            # Waiting here: the library's pool looks at all that wait whenever one ends.
            async with asyncio.timeout(timeout), self._slots:
                status, body = await self._exchange(command, progress)
        except TimeoutError:
            raise self.late(action, timeout, sent=progress.sent) from None
        except httpx.TimeoutException:
            raise self.late(action, self._connect_seconds, sent=progress.sent) from None
        except httpx.HTTPError as error:
            failed = ConnectionFailed(f"{self.address} cannot be asked to {action}: {error or type(error).__name__}")
            failed.sent = progress.sent
            raise failed from None
        except RuntimeError as error:  # httpx's, of a client that is closed
            raise ClientClosed(f"the session factory was closed: {error}") from None
        if body is None:
            return TooLong(ResultLine(status, b"", 0), ANSWER_BYTES_MAX)
        if status == Code.SUCCESS and isinstance(command, GetLine):
            return ValueLine(body, 0)
        return ResultLine(status, body, 0)

    async def _exchange(self, command: Command, progress: Progress) -> tuple[int, bytes | None]:
        """Return status and body; None: it is too long."""
        method, path, query, body = path_of(command, self._broker_id)
        asked = self._client.stream(
            method, self._base + path, params=query, content=body, extensions={"trace": progress.trace}
        )
        async with asked as answer:
            parts, size = list[bytes](), 0
            async for part in answer.aiter_raw():
                parts.append(part)
                size += len(part)
                if size > ANSWER_BYTES_MAX:
                    return answer.status_code, None
            return answer.status_code, b"".join(parts)

    async def close(self, patience: float = 0.0) -> None:
        """Connections belong to the factory."""
        del patience
        self.end()


class HttpLinks(Links):
    """The links of one factory over HTTP."""

    def __init__(self, config: HttpClientConfig, pace: ConnectionPace) -> None:
        super().__init__(pace)
        self._config = config
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(config.max_connections)

    def _make_link(self, address: str) -> Link:
        if self._client is None:
            self._client = opened(self._config)
        return HttpLink(address, self._pace, self._client, self._slots, self._config.connect_timeout)

    async def close(self) -> None:
        await super().close()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
