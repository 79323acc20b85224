"""Folders named by URIs: which are local, and the local run folder of a pipeline with a remote output. Loads no Spark."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Final

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]+):", re.IGNORECASE)


def is_uri(text: str) -> bool:
    """Return whether a folder's name has a scheme other than `file:`: only Hadoop's client can reach it."""
    scheme = _SCHEME.match(text)
    return scheme is not None and scheme[1].lower() != "file"


def plain_path(text: str) -> Path:
    """Return the absolute path of a local folder, whose name may begin with `file:`."""
    if not text.lower().startswith("file:"):
        return Path(text).absolute()
    rest = text[5:]
    return Path(f"/{rest.lstrip('/')}" if rest.startswith("/") else rest).absolute()


def run_folder(uri: str, given: str | None = None) -> Path:
    """Return the local folder of a run that writes to a URI: its lock on this machine, its status, requests to stop.

    Args: given: the option runFolder; None: a name derived from the URI, so that `status` and `stop` find it.
    """
    if given is not None:
        return Path(given).absolute()
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", uri.rstrip("/").rpartition("/")[2]) or "root"
    return state / "metaq" / "runs" / f"{name}-{hashlib.sha256(uri.rstrip('/').encode()).hexdigest()[:12]}"
