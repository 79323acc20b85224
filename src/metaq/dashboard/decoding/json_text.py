"""Decoded values as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


def as_json(value: Any) -> str:
    """Return a value as JSON: bytes in hexadecimal, what JSON has not as its text."""
    return msgspec.json.encode(_plain(value), enc_hook=str, order=None).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
