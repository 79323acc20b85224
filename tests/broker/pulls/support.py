"""Predicates for tests, as an operator would write them."""

from __future__ import annotations

import mmap
import os
import pathlib
import subprocess
import time

RESERVED = mmap.mmap(-1, 600 << 20, flags=mmap.MAP_PRIVATE)
"""As libraries do when they are imported, for the stacks of their threads."""


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


def leaves(message):
    """A process behind that has all of its open files, and dies."""
    if b"leave" in message.body:
        if os.fork() == 0:
            time.sleep(600)
        os._exit(7)
    return True


def strays(message):
    """A process behind in a session of its own, with all open files, which writes its number where the message says; and
    hangs, or dies."""
    what, _, place = message.body.partition(b" ")
    if what in (b"stray-hang", b"stray-die"):
        if os.fork() == 0:
            os.setsid()
            pathlib.Path(place.decode()).write_text(str(os.getpid()))
            time.sleep(600)
        if what == b"stray-die":
            os._exit(7)
        time.sleep(600)
    return True


def counts(message):
    """By a program that reads its standard input."""
    return subprocess.run(["cat"], stdout=subprocess.PIPE, check=True).stdout == b"" and b"no" not in message.body


def fine(message):
    """By a property behind odd ones."""
    return message.properties.get("b") == "fine" and message.tag == "t"
