"""Command lines that files of deploy/ have: their options, what our own parser says of them, and how their servers run on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from metaq.testing.embedded import SMALL
from tests.support import ROOT, environment, eventually, metaq_command, process, read_line, run_metaq

TABLE = ROOT / "docs" / "configuration.md"


def documented() -> set[str]:
    """Return every key of the option tables of docs/configuration.md, also the other spellings."""
    rows = re.findall(r"^\| ((?:`[\w.]+`(?:<br>)?)+) \|", TABLE.read_text(), re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([\w.]+)`", row)}


def options(words: Sequence[str]) -> dict[str, str]:
    """Return what `-o key=value` says in a command line. Raises AssertionError: a key comes twice."""
    pairs = [words[place + 1].partition("=") for place, word in enumerate(words) if word == "-o"]
    found = {key: value for key, _, value in pairs}
    assert len(found) == len(pairs), "a key comes twice"
    return found


def flag(words: Sequence[str], name: str, default: str = "") -> str:
    """Return the value of a flag."""
    return words[words.index(name) + 1] if name in words else default


def refused(words: Sequence[str]) -> str:
    """Return what our own command line has against `metaq WORDS`; empty: it would start."""
    if unknown := set(options(words)) - documented():
        return f"not in {TABLE.name}: {sorted(unknown)}"
    done = run_metaq(*words, "--print-config")
    return done.stderr if done.returncode else ""


def loopback() -> Iterator[str]:
    """Addresses of this machine that other test processes do not take: a network of our own, so that servers can have their usual ports."""
    pid = os.getpid()
    for number in range(1, 250):
        yield f"127.{64 + pid % 64}.{pid // 64 % 256}.{number}"


@contextmanager
def serving(
    words: Sequence[str], address: str, folder: Path, told: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run `metaq WORDS` of a container as a process: at `address` in place of everywhere, on `folder` in place of /data.

    told: host names → the addresses in their place. The files are small ones.
    """
    small = [word for key, value in SMALL.items() for word in ("-o", f"{key}={value}")] if words[0] == "broker" else []
    here = [placed(word, address, folder, told) for word in words]
    with process(*metaq_command(*here, *small), env=environment(), stderr=None) as child:
        yield child


def placed(word: str, address: str, folder: Path, told: Mapping[str, str]) -> str:
    """Return a word of a command line as it is for a server on this machine. 0.0.0.0/0 is a network, and stays."""
    word = re.sub(r"(?<![\d.])0\.0\.0\.0(?!/)", address, word).replace("/data", str(folder))
    for name in sorted(told, key=len, reverse=True):
        word = re.sub(rf"(?<![\w.-]){re.escape(name)}(?=:\d)", told[name], word)
    return word


def ready(child: subprocess.Popen[str]) -> str:
    """Wait until a server accepts clients; return its line."""
    return read_line(child, "ready")


def checked(address: str, port: int = 8120, kind: str = "ready") -> subprocess.CompletedProcess[str]:
    """Run the health check of the image against a server at an address."""
    script = ROOT / "deploy" / "container" / "healthcheck.py"
    asked = {**os.environ, "METAQ_HEALTH_HOST": address, "METAQ_HEALTH_PORT": str(port)}
    return subprocess.run([sys.executable, script, kind], capture_output=True, text=True, env=asked, check=False)


def healthy(address: str) -> str:
    """Wait until the health check of the image passes; return what it says."""
    return eventually(lambda: (done := checked(address)).returncode == 0 and done.stdout, what=f"health of {address}")
