"""Whether options can be changed in a running server, found before anything is sent to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from metaq.admin.configuring.reading import ServerOptions
from metaq.errors import ConfigError
from metaq.model.servers.option_state import AT_ONCE, RELOAD, OptionState
from metaq.option_table import camel, nearest

SHOWN_MAX: Final = 60
"""Characters of a wrong value in an error."""
_WHOLE: Final = re.compile(r"-?\d{1,19}")


def checked(server: ServerOptions, pairs: Mapping[str, str]) -> dict[str, str]:
    """Return the changes under the names that the server has for them.

    Raises ConfigError: no such option there, one that needs a restart, or a value of the wrong type.
    """
    if not pairs:
        raise ConfigError("no option is named: give KEY=VALUE")
    known = server.by_key()
    wrong, found = list[str](), dict[str, str]()
    for given, value in pairs.items():
        state = known.get(given) or known.get(camel(given))
        if state is None and server.is_ours:
            found[given] = value  # it knows other spellings, and why there is no option of a name
        elif state is None:
            wrong.append(f"{server.server} has no option {given[:SHOWN_MAX]!r}{nearest(given[:100], known)}")
        elif why := _why_not(server, state, value):
            wrong.append(why)
        elif state.key in found:
            wrong.append(f"{state.key} is given twice")
        else:
            found[state.key] = value.strip()
    if wrong:
        raise ConfigError(f"{'; '.join(wrong)}. Nothing was changed")
    return found


def _why_not(server: ServerOptions, state: OptionState, value: str) -> str:
    """Return why an option cannot have a value now, or ""."""
    if not value.isprintable():
        return f"{state.key}={value[:SHOWN_MAX]!r}: the value has a line break or another control character"
    if server.is_ours:
        if state.changes == RELOAD:
            return f"{state.key} is not changed over the wire: set it in the configuration file, and send SIGHUP"
        if state.changes != AT_ONCE:
            return (
                f"{state.key} needs a restart: set it in the configuration file of {server.server}, and start it again"
            )
        return ""  # it judges types and bounds itself, before it changes anything
    # A RocketMQ passes over what it cannot read, and says nothing.
    present = state.value or ""
    if present in {"true", "false"} and value.strip() not in {"true", "false"}:
        return f"{state.key}={value[:SHOWN_MAX]!r}: need true or false"
    if _WHOLE.fullmatch(present) and not _WHOLE.fullmatch(value.strip()):
        return f"{state.key}={value[:SHOWN_MAX]!r}: need a whole number"
    return ""
