"""Commands that touch several servers: asked beforehand whether they can do it, and told what is half done if one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from metaq.client.conversation.administration import GetRuntime
from metaq.client.conversation.call import FAULTS, Call
from metaq.client.conversation.routes import GetNameServerSettings
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, MetaqError

T = TypeVar("T")

_NO_PERMISSION: Final = 16


class NothingDone(MetaqError):
    """A server cannot be asked, or would refuse: found beforehand, nothing was changed anywhere."""


class HalfDone(MetaqError):
    """Some servers have done what was asked, others have not.

    Args:
        what: text before "at".
        done: names of those that have.
        failed: name → error, of those that have not.
    """

    def __init__(self, what: str, done: Iterable[str], failed: Mapping[str, MetaqError]) -> None:
        self.done, self.failed = tuple(done), dict(failed)
        reasons = "; ".join(f"not at {name}: {error}" for name, error in self.failed.items())
        super().__init__(f"{what} at {', '.join(self.done)}, but {reasons}. Repeat it to do the rest")


async def check_brokers(core: ClientCore, brokers: Mapping[str, str], what: str) -> None:
    """Raise NothingDone, which begins with `what`, if one of the brokers (name → address) does not answer."""
    _, failed = await _each(core, dict.fromkeys(brokers.items(), GetRuntime()))
    for (name, _), error in failed.items():
        if not isinstance(error, BrokerError):  # a refusal is an answer
            raise NothingDone(f"{what}, nothing was changed: broker {name} does not answer: {error}") from error


async def check_name_servers(core: ClientCore, what: str, *, all_answer: bool) -> None:
    """Raise NothingDone, which begins with `what`, if a name server would refuse a change.

    `all_answer`: also if one does not answer.
    """
    # RocketMQ's give their settings to anybody, as they take changes from anybody; ours to those who may change them.
    servers = {(f"name server {address}", address): GetNameServerSettings() for address in core.name_servers.addresses}
    _, failed = await _each(core, servers)
    for (name, _), error in failed.items():
        refuses = isinstance(error, BrokerError) and error.code == _NO_PERMISSION
        if refuses or (all_answer and not isinstance(error, BrokerError)):
            raise NothingDone(
                f"{what}, nothing was changed: {name} {'refuses' if refuses else 'does not answer'}: {error}"
            ) from error


async def at_each(core: ClientCore, what: str, servers: Mapping[str, str], call: Call[Any]) -> None:
    """Ask all servers (name → address) at once. Raises the first error if all fail; HalfDone if some do."""
    await at_several(core, what, dict.fromkeys(servers.items(), call))


async def at_several(
    core: ClientCore, what: str, calls: Mapping[tuple[str, str], Call[T]], done: Iterable[str] = ()
) -> dict[tuple[str, str], T]:
    """Ask (name, address) → call, all at once, and return the outcomes. Raises as `at_each`. `done`: names of servers that have done
    it before."""
    found, failed = await _each(core, calls)
    succeeded = [*done, *(name for name, _ in found)]
    if failed and not succeeded:
        raise next(iter(failed.values()))
    if failed:
        raise HalfDone(what, succeeded, {name: error for (name, _), error in failed.items()})
    return found


async def _each(
    core: ClientCore, calls: Mapping[tuple[str, str], Call[T]]
) -> tuple[dict[tuple[str, str], T], dict[tuple[str, str], MetaqError]]:
    """Ask (name, address) → call. Return outcomes and errors."""
    outcomes = await asyncio.gather(
        *(core.ask(address, call) for (_, address), call in calls.items()), return_exceptions=True
    )
    found: dict[tuple[str, str], T] = {}
    failed: dict[tuple[str, str], MetaqError] = {}
    for key, outcome in zip(calls, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            found[key] = outcome
        elif isinstance(outcome, FAULTS):
            failed[key] = outcome
        else:
            raise outcome
    return found, failed
