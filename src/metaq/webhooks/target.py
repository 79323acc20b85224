"""One attempt: a POST to the target, within a time and memory that the target has no say in.

The client is httpcore, what httpx is built on: without httpx's proxies of the environment, cookies and decompression, none of which a
sender of webhooks should have, and with a seam for the addresses that are connected to (`metaq.webhooks.addresses`).
"""

from __future__ import annotations

import asyncio
import os
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import httpcore

from metaq.clock import Clock
from metaq.errors import ConfigError
from metaq.net.dialer import look_up
from metaq.webhooks.addresses import AddressRefused, Network, reachable
from metaq.webhooks.answers import Answer, Verdict, of_status, plain
from metaq.webhooks.target_options import TargetOptions
from metaq.webhooks.url import TargetUrl

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host. Raises OSError: it has none."""

BODY_BYTES_MAX: Final = 64 << 10
"""Of an answer's body; with more of it the connection is closed."""
BODY_SECONDS: Final = 2.0
"""For an answer's body: its status line has said what counts."""
_ADDRESSES_MAX: Final = 4
"""Of one host, that are tried one after the other."""
_IDLE_SECONDS: Final = 4.0
"""Connections that are idle for longer are not used again: many servers close them after 5 s, perhaps just when we post."""
_KEEP_METHOD: Final = frozenset({307, 308})
_REDIRECTS: Final = frozenset({301, 302, 303}) | _KEEP_METHOD


class SupportsContext(Protocol):
    """What makes connections encrypted: `metaq.net.tls.client.ClientTls`."""

    @property
    def context(self) -> Any: ...


class Target:
    """A URL that messages are posted to. Opened and closed in one event loop."""

    def __init__(
        self, url: TargetUrl, options: TargetOptions, tls: SupportsContext, clock: Clock, resolve: Resolve = look_up
    ) -> None:  # fmt: skip
        self._url, self._options, self._clock = url, options, clock
        own = _CheckedBackend(resolve, options.allowed, options.timeout)
        self._pool = self._made(own, tls)
        # Other hosts, to which redirects lead, are public ones: what the user allows, he allows to his target.
        self._others = self._made(_CheckedBackend(resolve, (), options.timeout), tls) if options.redirects else None

    def _made(self, backend: _CheckedBackend, tls: SupportsContext) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=tls.context,
            max_connections=self._options.connections,
            max_keepalive_connections=self._options.connections,
            keepalive_expiry=_IDLE_SECONDS,
            network_backend=backend,
        )

    async def post(self, fields: Mapping[str, str], body: bytes) -> Answer:
        """Post a body once. Raises nothing but cancellation.

        Args: fields: header fields, ASCII.
        """
        limit = self._options.timeout
        try:
            async with asyncio.timeout(limit):
                return await self._follow(fields, body)
        except TimeoutError:
            return Answer(Verdict.FAILED, f"no answer of {self._url} within {limit:g} s")
        except AddressRefused as error:
            return Answer(Verdict.UNREACHABLE, str(error))
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            return Answer(Verdict.UNREACHABLE, f"no connection to {self._url}: {_cause(error)}")
        except httpcore.RemoteProtocolError as error:
            return Answer(
                Verdict.FAILED, f"{self._url} broke off, or its answer is no HTTP: {plain(str(error).encode())}"
            )
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            return Answer(
                Verdict.FAILED,
                f"the connection to {self._url} broke: {plain(str(error).encode()) or type(error).__name__}",
            )

    async def _follow(self, fields: Mapping[str, str], body: bytes) -> Answer:
        url, hops = self._url, 0
        while True:
            status, answered, said = await self._once(url, fields, body)
            if status not in _REDIRECTS:
                now, most = self._clock.now_ms() / 1000, self._options.retry_after_max
                return of_status(status, answered, said, now, most)
            if hops == self._options.redirects:
                return _not_followed(status, url, answered, hops)
            if status not in _KEEP_METHOD:
                return _failed(
                    status, f"it redirects with {status}, which would not be a POST any more: 307 and 308 are followed"
                )
            hops += 1
            try:
                following = url.joined(answered.get("location", ""))
            except ConfigError as error:
                return _failed(status, f"{url} redirects to what is no URL: {error}")
            if url.scheme == "https" and following.scheme != "https":
                return _failed(status, f"{url} redirects to {following}, which is not encrypted: that is not followed")
            url = following

    async def _once(self, url: TargetUrl, fields: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Post once. Returns status, header fields by lower-case names, and the beginning of the body."""
        at_home = url.origin == self._url.origin
        pool = self._pool if at_home else self._others
        assert pool is not None, "there is one as soon as redirects are followed"
        sent = [("host", url.origin.partition("://")[2]), ("content-length", str(len(body))), *fields.items()]
        if at_home:
            sent += self._options.headers
        request = httpcore.Request(
            "POST",
            url.full,
            headers=[(name.encode(), value.encode()) for name, value in sent],
            content=body,
            extensions={"timeout": {"connect": self._options.timeout / 2}},
        )
        response = await pool.handle_async_request(request)
        try:
            said = await _beginning(response)
        finally:
            await response.aclose()
        answered = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return response.status, answered, said

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()
        if self._others is not None:
            await self._others.aclose()


def _cause(error: BaseException) -> str:
    """Return why no connection was made: what the system or OpenSSL says, which stands behind what others make of it."""
    text = str(error)
    one: BaseException | None = None if isinstance(error, _NoName | httpcore.ConnectTimeout) else error
    while one is not None:
        if isinstance(one, OSError) and one.strerror:
            # asyncio has a sentence of its own with the number of the system's.
            text = one.strerror
            if text.startswith("Connect call failed") and one.errno is not None:
                text = os.strerror(one.errno)
        one = one.__cause__ or one.__context__
    return plain(text.encode()) or "it does not answer in time"


async def _beginning(response: httpcore.Response) -> bytes:
    """Return the body's beginning, without waiting long for it: what it is worth, the status has said."""
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in response.aiter_stream():
                found += piece[: BODY_BYTES_MAX - len(found)]
                if len(found) >= BODY_BYTES_MAX:
                    break
    except (TimeoutError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
        pass
    return bytes(found)


def _failed(status: int, text: str) -> Answer:
    return Answer(Verdict.FAILED, text, status, judged=False)


def _not_followed(status: int, url: TargetUrl, answered: Mapping[str, str], hops: int) -> Answer:
    try:
        where = str(url.joined(answered.get("location", "")))
    except ConfigError:
        where = "nowhere"
    if not hops:
        return _failed(status, f"status {status}: {url} redirects to {where}: redirects are not followed (redirects=0)")
    return _failed(status, f"status {status}: still redirected after {hops} redirects, now from {url} to {where}")


class _NoName(httpcore.ConnectError):
    """The host has no address."""


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that may be reached: to the very address that was checked."""

    def __init__(self, resolve: Resolve, allowed: Sequence[Network], seconds: float) -> None:
        self._resolve, self._allowed, self._seconds = resolve, allowed, seconds
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        """Raises AddressRefused, httpcore.ConnectError, httpcore.ConnectTimeout."""
        seconds = self._seconds if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                found = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"the name {host} was not resolved within {seconds:g} s") from None
        except (OSError, UnicodeError) as error:
            raise _NoName(f"the name {host} cannot be resolved: {error}") from None
        chosen = reachable(host, found, self._allowed)[:_ADDRESSES_MAX]
        why: Exception | None = None
        for address in chosen:
            try:
                return await self._inner.connect_tcp(
                    address, port, seconds / len(chosen), local_address, typing.cast("Any", socket_options)
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                why = error
        assert why is not None, "there is an address"
        raise why
