"""State and members of a group of replicas as JSON (docs/formats/failover.md): two nodes in ZooKeeper and a file.

For a value X, `x(...)` encodes and `x_of(body)` decodes. What cannot be read, or cannot be true, raises BadRequest; what could not be
read again raises LocalProtocolError, and is written nowhere. Unknown fields are ignored, so that a later version may add some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from metaq.address import split_address
from metaq.errors import BadRequest, ConfigError, LocalProtocolError
from metaq.model.failover import CHANGING, MEMBERS_MAX, NOBODY, TOKEN_CHARS_MAX, GroupState, Member, Membership

FORMAT: Final = 1
BYTES_MAX: Final = 64 * 1024
ADDRESS_CHARS_MAX: Final = 300
"""A host's name has 253 at most."""
LONG_MAX: Final = (1 << 63) - 1

Value = TypeVar("Value", GroupState, Member, Membership)


class _Format(Struct):
    """The field that says how to read the others."""

    format: int


_encode: Final = msgspec.json.Encoder().encode
_format_of: Final = msgspec.json.Decoder(_Format).decode
_state_of: Final = msgspec.json.Decoder(GroupState).decode
_member_of: Final = msgspec.json.Decoder(Member).decode
_membership_of: Final = msgspec.json.Decoder(Membership).decode


def group_state(state: GroupState) -> bytes:
    """Encode the state of a group."""
    return _encoded("the state of a group of replicas", state, _state_fault)


def group_state_of(body: bytes) -> GroupState:
    """Decode what `group_state` encodes."""
    return _decoded("the state of a group of replicas", body, _state_of, _state_fault)


def member(one: Member) -> bytes:
    """Encode what a live member says of itself."""
    return _encoded("a member of a group of replicas", one, _member_fault)


def member_of(body: bytes) -> Member:
    """Decode what `member` encodes."""
    return _decoded("a member of a group of replicas", body, _member_of, _member_fault)


def membership(kept: Membership) -> bytes:
    """Encode what a broker keeps of its group."""
    return _encoded("the membership in a group of replicas", kept, _membership_fault)


def membership_of(body: bytes) -> Membership:
    """Decode what `membership` encodes."""
    return _decoded("the membership in a group of replicas", body, _membership_of, _membership_fault)


def _encoded(what: str, value: Value, fault_of: Callable[[Value], str]) -> bytes:
    if fault := fault_of(value):
        raise LocalProtocolError(f"{what} cannot be written: {fault}")
    return _encode({"format": FORMAT, **msgspec.to_builtins(value)})


def _decoded(what: str, body: bytes, decode: Callable[[bytes], Value], fault_of: Callable[[Value], str]) -> Value:
    if len(body) > BYTES_MAX:
        raise BadRequest(f"{what} has {len(body)} bytes, more than {BYTES_MAX}")
    try:
        version = _format_of(body).format
        if version != FORMAT:
            raise BadRequest(f"{what} has format {version}: this version of MetaQ reads format {FORMAT} only")
        value = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{what} cannot be read: {str(error)[:200]}") from None
    if fault := fault_of(value):
        raise BadRequest(f"{what} cannot be true: {fault}")
    return value


def _state_fault(state: GroupState) -> str:
    """Return what cannot be true of a state; "": nothing."""
    numbers = [one.member for one in state.in_sync]
    leads = state.leader != NOBODY
    return (
        _token_fault("history", state.history)
        or _number_fault("epoch", state.epoch, 1, LONG_MAX)
        or _number_fault("leader", state.leader, NOBODY, MEMBERS_MAX)
        or _number_fault("handTo", state.hand_to, NOBODY, MEMBERS_MAX)
        or (_token_fault("incarnation", state.incarnation) if leads else "")
        or ("incarnation is given, and nobody leads" if state.incarnation and not leads else "")
        or ("inSync is empty" if not numbers else "")
        or next((fault for one in numbers if (fault := _number_fault("a member in inSync", one, 1, MEMBERS_MAX))), "")
        or ("inSync has a member twice" if len(set(numbers)) < len(numbers) else "")
        or next((fault for one in state.in_sync if (fault := _token_fault("a store in inSync", one.store))), "")
        or (f"leader {state.leader} is not in inSync" if leads and state.leader not in numbers else "")
    )


def _member_fault(one: Member) -> str:
    return (
        _number_fault("member", one.member, 1, MEMBERS_MAX)
        or _token_fault("incarnation", one.incarnation)
        or _token_fault("store", one.store)
        or _address_fault(one.address)
        or _number_fault("logEnd", one.log_end, CHANGING, LONG_MAX)
        or _number_fault("epoch", one.epoch, 0, LONG_MAX)
    )


def _membership_fault(kept: Membership) -> str:
    return (
        _token_fault("store", kept.store)
        or _number_fault("member", kept.member, NOBODY, MEMBERS_MAX)
        or (_token_fault("history", kept.history) if kept.history else "")
        or _number_fault("epoch", kept.epoch, 0, LONG_MAX)
        or (_token_fault("boot", kept.boot) if kept.boot else "")
    )


def _number_fault(name: str, value: int, least: int, most: int) -> str:
    return "" if least <= value <= most else f"{name} is {value}, and must be in {least}..{most}"


def _token_fault(name: str, value: str) -> str:
    if not 0 < len(value) <= TOKEN_CHARS_MAX:
        return f"{name} has {len(value)} characters, and must have 1..{TOKEN_CHARS_MAX}"
    if not (value.isascii() and value.isprintable()):
        return f"{name} is {value!r}, and must be printable ASCII"
    return ""


def _address_fault(value: str) -> str:
    fault = f"address is {value[:80]!r}, and must be host:port"
    if len(value) > ADDRESS_CHARS_MAX or not (value.isascii() and value.isprintable()) or " " in value:
        return fault
    try:
        _, port = split_address(value)
    except ConfigError:
        return fault
    return "" if port else fault
