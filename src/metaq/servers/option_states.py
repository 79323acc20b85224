"""The options of a server with where their values come from, as administrators read them (30022)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metaq.model.servers.option_state import AT_ONCE, RELOAD, RESTART, OptionState
from metaq.option_table import Settings, camel, text_of


def option_states(all_settings: Iterable[Settings], found_out: Mapping[str, str]) -> list[OptionState]:
    """Return the state of every option; secrets are left out.

    Args:
        all_settings: of the process.
        found_out: values that the server has found itself, by RocketMQ's name of the option.
    """
    states = []
    for settings in all_settings:
        for table in settings.tables:
            hidden, hot = table.secrets(), table.hot_names()
            for item in table.listed():
                if item.name in hidden:
                    continue
                key, value, origin = camel(item.name), getattr(table, item.name), settings.origin(item.name)
                at_once = AT_ONCE if settings.kept_in else RELOAD
                states.append(
                    OptionState(
                        key,
                        table.section,
                        _text(value) if table.section not in _OF_THE_BROKER else found_out.get(key, _text(value)),
                        _text(item.default),
                        origin.kind,
                        at_once if item.name in hot else RESTART,
                        origin.place,
                        settings.waiting.get(item.name),
                    )
                )
    return states


_OF_THE_BROKER = ("broker", "store")


def _text(value: object) -> str | None:
    return None if value is None else text_of(value)
