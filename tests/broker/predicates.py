"""Predicates for tests, as an operator would write them."""

from __future__ import annotations

import os
import pathlib
import time


def large(message):
    """Bodies of ten bytes or more."""
    return len(message.body) >= 10


def blue(message):
    """By a property, and whatever the tag is."""
    return message.properties.get("colour") == "blue"


def none(message):
    return False


def sleeps(message):
    """Ten seconds for a message that says so."""
    if b"sleep" in message.body:
        time.sleep(10)
    return True


def eats(message):
    """Two gigabytes for a message that says so."""
    if b"eat" in message.body:
        return len(bytearray(2 << 30)) > 0
    return True


def dies(message):
    """At once, as a crash in native code does."""
    if b"die" in message.body:
        os._exit(7)
    return True


def raises(message):
    if b"raise" in message.body:
        raise ValueError("not that one")
    return b"no" not in message.body


no_function = 5


def waits(message):
    """Until there is a file that the message names."""
    while message.body.startswith(b"wait ") and not pathlib.Path(message.body[5:].decode()).exists():
        time.sleep(0.05)
    return True
