"""The envelope of our own configuration files (`config/metaq*.json`): version and checksum in front of what they hold.

    {"v":1,"crc":"c7421d8b","floors":{"orders":1048576}}

The checksum is zlib's CRC-32, in hexadecimal, of the text without the two. Files of RocketMQ's stay byte for byte as it writes them.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from metaq.errors import ConfigError, StoreForeign

VERSION: Final = 1
_SEAL: Final = re.compile(r'\{"v":(\d{1,9}),"crc":"([0-9a-f]{8})"(,?)')
_TRACES: Final = '"crc":"', '{"v":'
_HEAD_CHARS: Final = 40


def is_sealed_file(name: str) -> bool:
    """Whether a configuration file of that name has an envelope."""
    return name.startswith("metaq") and name.endswith(".json")


def seal(text: str) -> str:
    """Return a JSON object with version and checksum in front; any other text as it is."""
    if not text.startswith("{"):
        return text
    rest = text[1:]
    comma = "" if rest.lstrip().startswith("}") else ","
    return f'{{"v":{VERSION},"crc":"{zlib.crc32(text.encode()):08x}"{comma}{rest}'


def unseal(text: str, where: str) -> str:
    """Return what was sealed. A text without an envelope is of an older release, or was written by hand: it comes back as it is.

    Raises: ConfigError: it does not fit its checksum. StoreForeign: a later release wrote it.
    """
    found = _SEAL.match(text)
    if found is None or not int(found[1]):
        if any(trace in text[:_HEAD_CHARS] for trace in _TRACES):
            raise ConfigError(f"{where}: its beginning is damaged; restore it from its .bak")
        return text
    if int(found[1]) > VERSION:
        raise StoreForeign(
            f"{where} is of version {found[1]}, and this release reads version {VERSION}: nothing was touched; use the newer release"
        )
    held = "{" + text[found.end() :]
    if f"{zlib.crc32(held.encode()):08x}" != found[2]:
        raise ConfigError(
            f'{where} does not fit its checksum; restore it from its .bak. If it was changed by hand, remove "v" and "crc" from it'
        )
    return held
