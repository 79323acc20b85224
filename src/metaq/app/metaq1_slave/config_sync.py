"""Topic sections of a master's server.ini in that of its slave (autoSyncMasterConfig).

The original's slave writes its master's whole file over its own, with the master's address and folders in it. Here [system] and
[zookeeper] stay the slave's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from metaq.app.config_files.server_ini import TOPIC_FILE, TOPIC_PREFIX, entries, read_server_ini
from metaq.durable import write_whole
from metaq.errors import ConfigError

_Sections: TypeAlias = dict[str, dict[str, str]]


def sections_of(text: str, place: str) -> _Sections:
    """Return the sections of topics, key → text of each; empty values say nothing. Raises ConfigError."""
    found: _Sections = {}
    for entry in entries(text, place):
        if entry.section.startswith(TOPIC_PREFIX):
            section = found.setdefault(entry.section, {})
            if entry.value:
                section[entry.key] = entry.value
    return found


def with_sections(own: str, master: str) -> str | None:
    """Return a slave's server.ini with the sections of topics of its master's; None: they are the same. Raises ConfigError."""
    wanted = sections_of(master, "the master's server.ini")
    if wanted == sections_of(own, "server.ini"):
        return None
    kept, of_topic = list[str](), False
    for line in own.splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            of_topic = stripped[1:].replace(" ", "").startswith(TOPIC_PREFIX)
        if not of_topic:
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    for section, pairs in wanted.items():
        kept += ["", f"[{section}]", *(f"{key}={value}" for key, value in pairs.items())]
    return "\n".join([*kept, ""])


def take_over(path: str, master: bytes) -> bool:
    """Write the sections of topics of a master's server.ini into the file of its slave. Blocks. Returns whether they have changed.

    Raises ConfigError: one of the files cannot be read, or what would be written cannot be used here; OSError.
    """
    file = Path(path)
    if file.with_name(TOPIC_FILE).is_file():
        raise ConfigError(f"{file.with_name(TOPIC_FILE)} has sections of topics, too: move them into {path}")
    raw = file.read_bytes()
    text = with_sections(_decoded(raw, path), _decoded(master, "the master's server.ini"))
    if text is None:
        return False
    trial = file.with_name(f".{file.name}.from-master")
    write_whole(trial, text.encode())
    try:
        read_server_ini(str(trial))  # a file that no start could read must not take the place of one that can
    finally:
        trial.unlink()
    write_whole(file, text.encode())
    return True


def _decoded(raw: bytes, place: str) -> str:
    for encoding in ("utf-8-sig", "gbk"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise ConfigError(f"{place} is neither UTF-8 nor GBK")
