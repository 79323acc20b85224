"""Keys as users write them, in files and with `-o`: which option of which table each means.

A key that is no option is refused with the nearest that is one, or with the reason why RocketMQ's key sets nothing here.
In a file of RocketMQ it is passed over with a warning, unless its neglect would break a promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from metaq.app.config_files.sections import METAQ1, SECTIONS, TLS
from metaq.app.foreign.refused import PROMISES, refuse
from metaq.errors import ConfigError
from metaq.options import Metaq1Options, OptionTable, camel, nearest
from metaq.tls_options import TlsOptions

FLUSH: Final = "flushDiskType"
GROUP_COMMIT: Final = "groupCommitEnable"
"""Another word for flushDiskType: true is SYNC_FLUSH, false ASYNC_FLUSH."""
_ACCOUNTS: Final = frozenset({"aclEnable", "aclPath"})


def take_pairs(into: dict[str, Any], table: type[OptionTable], pairs: Mapping[str, Any], where: str) -> None:
    spellings = table.spellings()
    for key, value in pairs.items():
        if table is not Metaq1Options:  # its brokerId is a number of 1.x, not a role
            refuse(key, value, where, foreign=False)
        if key not in spellings:
            raise ConfigError(f"{where}: there is no option {key!r}{_hint(key, spellings)}")
        table.read({key: value}, where)  # here, where the place of a wrong value is still known
        into[spellings[key]] = value


def take_setting(setting: str, values: dict[str, dict[str, Any]], serving: Sequence[str]) -> list[str]:
    """Take one `-o`. Returns warnings: its section is another server's. Raises ConfigError."""
    key, found, value = setting.partition("=")
    section, dot, rest = key.strip().partition(".")
    if section not in SECTIONS and key.strip() in Metaq1Options.spellings():  # zk.zkRoot
        section, dot, rest = METAQ1, "", key.strip()
    elif key.strip() in TlsOptions.spellings():  # tls.server.mode
        section, dot, rest = TLS, ".", key.strip()
    elif section == TLS:
        refuse(key.strip(), value, f"-o {key.strip()}", foreign=False)
    elif not found or (dot and section not in SECTIONS):
        refuse(key.strip(), value, f"-o {setting}", foreign=False)  # tls.enable
        raise ConfigError(f"-o {setting}: need key=value or section.key=value, section one of {', '.join(SECTIONS)}")
    elif not dot:
        rest = key.strip()
    ((rest, value),) = renamed({rest: value}, f"-o {setting}").items()
    takers = [section] if dot else list(serving)
    known = [name for name in takers if rest in SECTIONS[name].spellings()]
    if known and SECTIONS[known[0]].spellings()[rest] in SECTIONS[known[0]].secrets():
        raise ConfigError(f"-o {rest}: whoever may list processes can read it there; put it into a file")
    if not known:
        refuse(rest, value, f"-o {setting}", foreign=False)
        everything = {spelling: "" for name in takers for spelling in SECTIONS[name].spellings()}
        raise ConfigError(f"-o {setting}: there is no option {rest!r}{_hint(rest, everything)}")
    take_pairs(values[known[0]], SECTIONS[known[0]], {rest: value}, f"-o {setting}")
    if known[0] in serving:
        return []
    sections = ", ".join(f"[{name}]" for name in serving)
    return [f"-o {setting} has no effect: this server has no section [{known[0]}], only {sections}"]


def take_properties(
    pairs: Mapping[str, Any], path: str, values: dict[str, dict[str, Any]], serving: Sequence[str]
) -> list[str]:
    from metaq.app.foreign import passed_over  # here and not above: most starts have no such file

    warnings, without_effect = list[str](), list[str]()
    everything = {spelling: "" for section in serving for spelling in SECTIONS[section].spellings()}
    for key, value in pairs.items():
        refuse(key, value, path, foreign=True)
        takers = [section for section in serving if key in SECTIONS[section].spellings()]
        if key in _ACCOUNTS and "broker" in takers:
            takers = ["broker"]  # RocketMQ's name server has none: its broker.conf means the broker
        for section in takers:
            take_pairs(values[section], SECTIONS[section], {key: value}, path)
        if not takers and key in passed_over.REASONS:
            without_effect.append(key)
        elif not takers and key not in PROMISES:
            warnings.append(f"{path}: {key} is unknown and passed over{nearest(key, everything)}")
    return [*warnings, *passed_over.notices(without_effect, path)]


def renamed(pairs: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return pairs with groupCommitEnable as the flushDiskType that it means. Raises ConfigError: both stand there, and differ."""
    if GROUP_COMMIT not in pairs:
        return pairs
    value = pairs[GROUP_COMMIT]
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise ConfigError(f"{GROUP_COMMIT}={value!r} in {where}: need true or false")
    meant = "SYNC_FLUSH" if text == "true" else "ASYNC_FLUSH"
    if pairs.get(FLUSH, meant) != meant:
        raise ConfigError(
            f"{GROUP_COMMIT}={text} in {where} means {FLUSH}={meant}, not {pairs[FLUSH]}: remove one of the two"
        )
    return {**{key: other for key, other in pairs.items() if key != GROUP_COMMIT}, FLUSH: meant}


def _hint(key: str, names: Iterable[str]) -> str:
    """Return the end of an error about a key that is no option: why RocketMQ's is none here, or the nearest that is one."""
    from metaq.app.foreign.passed_over import REASONS  # here and not above: a start without a wrong key goes without

    reason = REASONS.get(camel(key))
    return f" here: {reason}" if reason is not None else nearest(key, names)
