"""Configuration: option tables of files, flags and the environment, and a commented template of them.

Three kinds of file are read: RocketMQ's `broker.conf` or `namesrv.properties`, Java properties in which a key that we
do not have is worth a warning; a `server.ini` of MetaQ 1.x (`metaq.app.server_ini`); and our own `metaq.toml` with the
sections `[broker]`, `[store]`, `[metaq1]`, `[namesrv]`, `[tls]` and `[dashboard]`. A wrong key in one of the latter two stops the start. Flags
beat the file, which beats the environment.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from metaq.app.addressing.told import EVERYWHERE, listeners_of
from metaq.app.foreign.refused import PROMISES, refuse
from metaq.dashboard_options import DashboardOptions
from metaq.errors import ConfigError
from metaq.net.address import is_loopback
from metaq.net.budget import ListenLimits
from metaq.option_table import (
    DERIVED,
    FROM_COMMAND_LINE,
    FROM_ENVIRONMENT,
    FROM_FILE,
    Origin,
    Origins,
)
from metaq.options import BrokerOptions, Metaq1Options, NamesrvOptions, OptionTable, StoreOptions, camel, nearest
from metaq.server_options import PeerOptions
from metaq.store.disk import file_limit
from metaq.store.offline.sizes import sizes_found
from metaq.tls_options import TlsOptions

if TYPE_CHECKING:
    from metaq.app.partition_sections import TopicSection
    from metaq.app.server_ini import ServerIni
    from metaq.broker.metaq1.settings import Metaq1Settings
    from metaq.model.metaq1.pair import PairSettings
    from metaq.model.metaq1.settings import PartitionRules

Table = TypeVar("Table", bound=OptionTable)

SECTIONS: Final[dict[str, type[OptionTable]]] = {
    "broker": BrokerOptions,
    "store": StoreOptions,
    "metaq1": Metaq1Options,
    "namesrv": NamesrvOptions,
    "tls": TlsOptions,
    "dashboard": DashboardOptions,
}
OF_WEBHOOKS: Final = "webhooks"
"""A section of a `metaq.toml` that `metaq webhook run` reads, and no server."""
TLS: Final = "tls"
TLS_FILE: Final = "/etc/rocketmq/tls.properties"
"""Where RocketMQ looks for its `tls.properties` if nothing names another place."""
METAQ1: Final = "metaq1"
FLUSH: Final = "flushDiskType"
GROUP_COMMIT: Final = "groupCommitEnable"
"""Another word for flushDiskType: true is SYNC_FLUSH, false ASYNC_FLUSH."""

LOOPBACK: Final = "127.0.0.1"
ACL_FILE: Final = "plain_acl.yml"
"""RocketMQ's name for the file of accounts."""


class Configuration(Struct, frozen=True):
    """Options of one process, and warnings for its user."""

    broker: BrokerOptions
    store: StoreOptions
    metaq1: Metaq1Options
    namesrv: NamesrvOptions
    warnings: tuple[str, ...] = ()
    sections: tuple[TopicSection, ...] | None = None
    """Sections of topics of MetaQ 1.x; None: the configuration has none, so autoCreateTopicEnable decides."""
    tls: TlsOptions = TlsOptions()
    dashboard: DashboardOptions = DashboardOptions()
    server_ini: bytes = b""
    """Text of the `server.ini`, or of an equivalent one; empty without 1.x. Clients read it with `stats config`."""
    server_ini_path: str = ""
    """Of the file; empty: there is none."""
    origins: Mapping[str, Origins] = {}
    """Section → where the values come from that are not there by default."""
    pair: PairSettings | None = None
    """The broker is one half of a synchronous pair of MetaQ 1.x."""

    @property
    def rules(self) -> PartitionRules:
        """Rules for the topics of 1.x clients."""
        from metaq.app import partition_sections

        return partition_sections.rules(self.metaq1, self.sections)

    @property
    def metaq1_settings(self) -> Metaq1Settings | None:
        """Settings for a broker that serves MetaQ 1.x, a copy that it may change; None: it does not serve it."""
        if not self.metaq1.enable:
            return None
        from metaq.broker.metaq1.settings import Metaq1Settings

        settings = Metaq1Settings(self.metaq1.replace(), self.rules, self.server_ini, self.pair)
        settings.path = self.server_ini_path
        return settings


class _File(Struct, frozen=True):
    """A parsed file. `rocketmq`: keys have no sections; each goes to all tables that know it."""

    path: str
    rocketmq: bool
    pairs: Mapping[str, Mapping[str, Any]]


_ACCOUNTS: Final = frozenset({"aclEnable", "aclPath"})


# ---- files ------------------------------------------------------------------------------------------------------


def read_properties(text: str) -> dict[str, str]:
    r"""Parse Java properties: `#` and `!` comments; `=`, `:` or a blank between key and value; `\` escapes, and joins
    lines."""
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)\Z", line, re.DOTALL)
        if match and match.group(1):
            # Java keeps blanks at the end of a value; nobody means them.
            pairs[_unescape(match.group(1))] = _unescape(match.group(2)).rstrip()
    return pairs


def _logical_lines(text: str) -> Iterator[str]:
    joined = ""
    for raw in text.splitlines():
        line = raw.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        joined += line
        # An odd number joins lines: `\\` is a backslash.
        trailing = len(joined) - len(joined.rstrip("\\"))
        if trailing % 2:
            joined = joined[:-1]
            continue
        yield joined
        joined = ""
    if joined:
        yield joined


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        word = match.group(1)
        if word[0] == "u" and len(word) == 5:
            return chr(int(word[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(word, word)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", plain, text, flags=re.DOTALL)


def _read_file(path: str) -> _File | ServerIni:
    """Raises ConfigError: the file cannot be read, or is of none of the three kinds."""
    try:
        raw = pathlib.Path(path).read_bytes()
        from metaq.app.server_ini import is_server_ini, read_server_ini  # here and not above: most starts have no file

        if is_server_ini(path, raw.decode("utf-8", "replace")):
            return read_server_ini(path)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from None
    first = next((line.strip() for line in text.splitlines() if line.strip() and line.strip()[0] not in "#!"), "")
    # A file whose first line is no section is RocketMQ's: Java properties have none.
    if not first.startswith("[") and not path.endswith(".toml"):
        return _File(path, True, {"": _renamed(_checked_properties(path, text), path)})
    import tomllib  # here and not above: the start without a file is measured in milliseconds

    try:
        sections = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    sections.pop(OF_WEBHOOKS, None)
    for name, section in sections.items():
        if name not in SECTIONS or not isinstance(section, dict):
            raise ConfigError(
                f"{path}: [{name}] is not a section; there are {', '.join(f'[{s}]' for s in SECTIONS)}, and in a server.ini of MetaQ 1.x "
                "[system], [zookeeper] and [topic=NAME]"
            )
    pairs_of = {name: _renamed(pairs, f"[{name}] of {path}") for name, pairs in _with_tls(sections).items()}
    return _File(path, False, pairs_of)


def _checked_properties(path: str, text: str) -> dict[str, str]:
    """Return the pairs of a RocketMQ file. Raises ConfigError: not one key is known, so that it is something else."""
    from metaq.app.foreign.passed_over import REASONS  # here and not above: a start without such a file goes without

    pairs = read_properties(text)
    known = {GROUP_COMMIT, *REASONS, *PROMISES, *(key for table in SECTIONS.values() for key in table.spellings())}
    if pairs and not any(key in known or key.startswith("tls.") for key in pairs):
        first = next(iter(pairs))
        raise ConfigError(
            f"{path} is no configuration file: neither a RocketMQ broker.conf or namesrv.properties (key=value; not one of its keys is known, "
            f"the first is {first[:80]!r}{nearest(first, known)}), nor a MetaQ 1.x server.ini ([system], [zookeeper], [topic=NAME]), nor a "
            "metaq.toml ([broker], [store], ...)"
        )
    return pairs


def _with_tls(sections: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the sections with all keys of TLS in theirs: `tls.server.mode` at the top, or in a server's section, is a
    table in a table to TOML."""
    found = {name: dict(pairs) for name, pairs in sections.items()}
    gathered = dict(_dotted(found.pop(TLS, {}), ""))
    for section in ("broker", "namesrv"):
        inner = found.get(section, {}).pop(TLS, None)
        if isinstance(inner, dict):
            gathered |= _dotted(inner, "")
        for key in [key for key in found.get(section, {}) if key.startswith("tls.")]:
            gathered[key] = found[section].pop(key)
    return {**found, TLS: gathered} if gathered else found


def _dotted(pairs: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    known = TlsOptions.spellings()
    for key, value in pairs.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield key if key in known and not prefix else f"tls.{prefix}{key}", value


# ---- putting it together ----------------------------------------------------------------------------------------


class _Values(dict[str, Any]):
    """Options of a section as they are put together: what is said last counts. Knows where each comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[str, Origin] = {}

    def say(self, given: Mapping[str, Any], kind: str, place: str) -> None:
        """Set options. Args: kind, place: as in `Origin`."""
        self.update(given)
        self.origins |= dict.fromkeys(given, Origin(kind, place))

    def imply(self, given: Mapping[str, Any], place: str) -> None:
        """Set those that nobody has set."""
        self.say({name: value for name, value in given.items() if name not in self}, DERIVED, place)


def _blank() -> dict[str, dict[str, Any]]:
    return {section: {} for section in SECTIONS}


def load(
    file: str | None = None,
    *,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Sequence[str] = (),
    serving: Sequence[str] = ("broker", "store", TLS),
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    environment: Mapping[str, str] | None = None,
    insecure: bool = False,
    metaslave: str | None = None,
) -> Configuration:
    """Make the option tables of one process.

    Args:
        file: a RocketMQ properties file, a `server.ini` or a `metaq.toml`.
        flags: section → option → value; None means not given.
        settings: `key=value` or `section.key=value` of `-o`.
        serving: sections that this process obeys; a plain key of `settings` or of a properties file goes to those that
            have it.
        defaults: as `flags`, but every source beats them, also the sizes of files that the store's folder already has.
        environment: for NAMESRV_ADDR.
        insecure: consent to listen beyond this machine without access control, and to be administered from there.
        metaslave: the file of an asynchronous slave of MetaQ 1.x.
    Raises:
        ConfigError: names the key, its place and the nearest name.
    """
    values = {section: _Values() for section in SECTIONS}
    warnings: list[str] = []
    rocketmq = False
    sections: tuple[TopicSection, ...] | None = None
    server_ini: ServerIni | None = None
    if "broker" in serving and (
        address := (environment if environment is not None else os.environ).get("NAMESRV_ADDR")
    ):
        # First, so that file and flags overwrite it.
        values["broker"].say({"namesrv_addr": address}, FROM_ENVIRONMENT, "NAMESRV_ADDR")
    if file is not None:
        parsed = _read_file(file)
        if not isinstance(parsed, _File):
            server_ini, sections = parsed, parsed.sections
            values[METAQ1].say(parsed.values, FROM_FILE, file)
            values[METAQ1].imply({"enable": True}, "a server.ini is loaded")
            warnings += parsed.warnings
            if METAQ1 not in serving:
                raise ConfigError(f"{file} is the configuration of a broker: start it by metaq broker")
            serving = (METAQ1, *(section for section in serving if section != METAQ1))
        elif parsed.rocketmq:
            rocketmq = True
            said = _blank()
            warnings += _take_properties(parsed, said, [section for section in serving if section != METAQ1])
            for section, texts in said.items():
                values[section].say(texts, FROM_FILE, file)
            # Two of RocketMQ's defaults that are not ours: it always listens on the VIP port, and refuses SQL filters.
            values["broker"].imply({"vip_port_enable": True, "enable_property_filter": False}, "the file is RocketMQ's")
            if pathlib.Path(TLS_FILE).is_file():
                values[TLS].imply({"tls_config_file": TLS_FILE}, "RocketMQ looks there")
        else:
            for section, pairs in parsed.pairs.items():
                if section == METAQ1:
                    from metaq.app import partition_sections

                    pairs, sections = partition_sections.split_topics(pairs, file)  # noqa: PLW2901
                taken: dict[str, Any] = {}
                _take(taken, SECTIONS[section], pairs, f"[{section}] of {file}")
                values[section].say(taken, FROM_FILE, file)
    if metaslave is not None:
        from metaq.app.metaq1_slave.properties import read_slave_properties, slave_properties_text

        slave, notes = read_slave_properties(metaslave, read_properties(slave_properties_text(metaslave)))
        values[METAQ1].say(slave, FROM_FILE, metaslave)
        values[METAQ1].imply({"enable": True}, "it is a slave of MetaQ 1.x")
        warnings += notes
    said = _blank()
    for setting in settings:
        _take_setting(setting, said, serving)
    for section, texts in said.items():
        values[section].say(texts, FROM_COMMAND_LINE, "-o")
    for section, given in (flags or {}).items():
        values[section].say({key: one for key, one in given.items() if one is not None}, FROM_COMMAND_LINE, "a flag")
    everywhere = rocketmq or server_ini is not None
    guarded = {
        section
        for section, table in (("broker", BrokerOptions), ("namesrv", NamesrvOptions))
        if section in serving and table.read(values[section], file or "")[0].acl_enable
    }
    for section in guarded:
        place = acl_path(file, environment if environment is not None else os.environ)
        values[section].imply({"acl_path": place}, "the first place that may have it")
    for section in serving:
        if "bind_address" in SECTIONS[section].spellings():
            warnings += _check_address(
                section, values[section], everywhere=everywhere, insecure=insecure, has_accounts=section in guarded
            )
            for host, _ in listeners_of(str(values[section].get("listeners") or "")).values():
                warnings += _check_address(
                    section,
                    {"bind_address": host},
                    everywhere=everywhere,
                    insecure=insecure,
                    has_accounts=section in guarded,
                )
            if insecure:  # whoever lets everybody delete topics at the broker wants the routes deleted, too
                values[section].imply({"remote_administration_enable": True}, "--insecure")
    metaq1 = Metaq1Options.read(values[METAQ1], file or "")[0]
    if metaq1.enable:
        from metaq.app import identity, partition_sections  # here and not above: a broker without 1.x goes without

        if "broker" in guarded and not values["broker"].get("acl_metaq1_accounts"):
            warnings.append(
                "clients of MetaQ 1.x cannot sign what they ask for: with aclEnable=true they are answered 403, but from addresses "
                "in globalWhiteRemoteAddresses; aclMetaq1Accounts gives accounts to addresses"
            )
        for name in values[METAQ1]:
            partition_sections.check_value(name, getattr(metaq1, name))
        named = set(values[METAQ1])
        if server_ini is not None:  # 1.x's defaults hold as if the file named them, except the size of log files
            named |= metaq1.values().keys() - {"max_segment_size"}
        if sections is not None:
            warnings += partition_sections.notices(metaq1, sections, file or "")
        follows = identity.implied(metaq1, named, partition_sections.rules(metaq1, sections))
        for section, pairs in follows.items():
            values[section].imply(pairs, "options of MetaQ 1.x")
    where = file or ""
    for section, fallback in (defaults or {}).items():
        # The sizes of files that are there: with other options RocketMQ and we would refuse the folder.
        found = sizes_found(StoreOptions.read({**fallback, **values[section]})[0]) if section == "store" else {}
        values[section].imply(found, "the files that the store has")
        values[section].imply(fallback, "the command that was called")
    broker, store = BrokerOptions.read(values["broker"], where)[0], StoreOptions.read(values["store"], where)[0]
    if metaq1.enable:
        metaq1 = identity.settled(metaq1, broker, store)
        if warning := identity.old_data(metaq1.data_path):
            warnings.append(warning)
        if server_ini is not None:
            warnings += identity.http_notices(metaq1, broker)
    if broker.http_port is not None:
        warnings += _check_address(
            "broker", {"bind_address": broker.http_bind_address}, everywhere=everywhere, insecure=insecure, has_accounts="broker" in guarded
        )  # fmt: skip
    namesrv = NamesrvOptions.read(values["namesrv"], where)[0]
    told_name_servers(namesrv)
    return Configuration(
        broker,
        store,
        metaq1,
        namesrv,
        tuple(warnings),
        sections,
        TlsOptions.read(values[TLS], where)[0],
        DashboardOptions.read(values["dashboard"], where)[0],
        server_ini.text if server_ini is not None else _server_ini_of(metaq1, sections or ()),
        server_ini.path if server_ini is not None else "",
        {section: one.origins for section, one in values.items()},
    )


def _server_ini_of(options: Metaq1Options, sections: Sequence[TopicSection]) -> bytes:
    if not options.enable:
        return b""
    from metaq.app.server_ini import written

    return written(options, sections)


def _take(into: dict[str, Any], table: type[OptionTable], pairs: Mapping[str, Any], where: str) -> None:
    spellings = table.spellings()
    for key, value in pairs.items():
        if table is not Metaq1Options:  # its brokerId is a number of 1.x, not a role
            refuse(key, value, where, foreign=False)
        if key not in spellings:
            raise ConfigError(f"{where}: there is no option {key!r}{_hint(key, spellings)}")
        table.read({key: value}, where)  # here, where the place of a wrong value is still known
        into[spellings[key]] = value


def _hint(key: str, names: Iterable[str]) -> str:
    """Return the end of an error about a key that is no option: why RocketMQ's is none here, or the nearest that is one."""
    from metaq.app.foreign.passed_over import REASONS  # here and not above: a start without a wrong key goes without

    reason = REASONS.get(camel(key))
    return f" here: {reason}" if reason is not None else nearest(key, names)


def _renamed(pairs: Mapping[str, Any], where: str) -> Mapping[str, Any]:
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


def _take_setting(setting: str, values: dict[str, dict[str, Any]], serving: Sequence[str]) -> None:
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
    ((rest, value),) = _renamed({rest: value}, f"-o {setting}").items()
    takers = [section] if dot else list(serving)
    known = [name for name in takers if rest in SECTIONS[name].spellings()]
    if known and SECTIONS[known[0]].spellings()[rest] in SECTIONS[known[0]].secrets():
        raise ConfigError(f"-o {rest}: whoever may list processes can read it there; put it into a file")
    if not known:
        refuse(rest, value, f"-o {setting}", foreign=False)
        everything = {spelling: "" for name in takers for spelling in SECTIONS[name].spellings()}
        raise ConfigError(f"-o {setting}: there is no option {rest!r}{_hint(rest, everything)}")
    _take(values[known[0]], SECTIONS[known[0]], {rest: value}, f"-o {setting}")


def _take_properties(parsed: _File, values: dict[str, dict[str, Any]], serving: Sequence[str]) -> list[str]:
    from metaq.app.foreign import passed_over  # here and not above: most starts have no such file

    warnings, without_effect = list[str](), list[str]()
    everything = {spelling: "" for section in serving for spelling in SECTIONS[section].spellings()}
    for key, value in parsed.pairs[""].items():
        refuse(key, value, parsed.path, foreign=True)
        takers = [section for section in serving if key in SECTIONS[section].spellings()]
        if key in _ACCOUNTS and "broker" in takers:
            takers = ["broker"]  # RocketMQ's name server has none: its broker.conf means the broker
        for section in takers:
            _take(values[section], SECTIONS[section], {key: value}, parsed.path)
        if not takers and key in passed_over.REASONS:
            without_effect.append(key)
        elif not takers and key not in PROMISES:
            warnings.append(f"{parsed.path}: {key} is unknown and passed over{nearest(key, everything)}")
    return [*warnings, *passed_over.notices(without_effect, parsed.path)]


def told_name_servers(options: NamesrvOptions) -> str:
    """Return what `addressPage` says, `host:port;host:port`; empty: nothing. Raises ConfigError: it is no list of addresses."""
    if not options.address_page:
        return ""
    from metaq.client.conversation.name_servers import parse_addresses  # here and not above: a broker has no page

    try:
        return ";".join(parse_addresses(options.address_page))
    except ConfigError as error:
        raise ConfigError(f"addressPage={options.address_page}: {error}") from None


def acl_path(file: str | None, environment: Mapping[str, str]) -> str:
    """Return where the main file is looked for if `aclPath` does not say it.

    It is the first place that has one, or the first place: beside the configuration file, `conf` in ROCKETMQ_HOME, or here.

    Args:
        file: the configuration file; None without one.
        environment: of the process.
    """
    places = [pathlib.Path(file).resolve().parent] if file is not None else []
    if home := environment.get("ROCKETMQ_HOME"):
        places.append(pathlib.Path(home) / "conf")
    found = [place / ACL_FILE for place in places or [pathlib.Path.cwd()]]
    return str(next((path for path in found if path.is_file()), found[0]))


def _check_address(
    section: str, values: dict[str, Any], *, everywhere: bool, insecure: bool, has_accounts: bool
) -> list[str]:
    # RocketMQ and MetaQ 1.x listen on all addresses when a file names none, and its author relies on that.
    if everywhere and isinstance(values, _Values):
        values.imply({"bind_address": EVERYWHERE}, "the kind of the file")
    address = str(values.setdefault("bind_address", LOOPBACK))
    if address == "localhost" or is_loopback(address):
        return []
    if has_accounts and section == "namesrv":
        return []
    if has_accounts:
        return [
            (
                f"the broker listens on {address}: accounts guard its port for clients, and addresses that of slaves (haListenPort); "
                "nothing is encrypted: guard both by a firewall"
            )
        ]
    if not (everywhere or insecure):
        raise ConfigError(
            f"listening on {address} lets everybody who can reach this machine read, write and delete, for there is no"
            " access control: add --insecure if that is meant, or listen on 127.0.0.1; with aclEnable=true there are accounts"
        )
    what = {"broker": "broker", "namesrv": "name server"}[section]
    return [f"the {what} listens on {address} without access control: guard its port by a firewall"]


def listen_limits(options: PeerOptions) -> ListenLimits:
    """Return the limits of peers in the options, and those that the process's limit of open files leaves them."""
    return ListenLimits(
        connections_max=options.connections_max,
        descriptor_max=file_limit() * 3 // 4,
        unanswered_bytes_max=options.unanswered_bytes_max,
        unanswered_bytes_max_total=options.unanswered_bytes_max_total,
        half_read_bytes_max=options.half_read_bytes_max,
        peer_bytes_max=options.peer_bytes_max,
        idle_seconds=options.server_channel_max_idle_time_seconds,
        backlog=options.server_socket_backlog,
        send_buffer=options.server_socket_snd_buf_size,
        receive_buffer=options.server_socket_rcv_buf_size,
    )


# ---- the template -----------------------------------------------------------------------------------------------


def template(tables: Mapping[str, OptionTable], topics: Sequence[TopicSection] | None = None) -> str:
    """Return a complete `metaq.toml` with these values, a sentence above each. `load` reads the same tables and topics
    from it."""
    lines = ["# A complete metaq.toml. Every option stands here with its value; those commented out have none."]
    for section, table in tables.items():
        lines += ["", f"[{section}]"]
        for item in table.listed():
            facts, value = item.metadata, getattr(table, item.name)
            if facts.get("secret"):
                value = None
            lines += ["", f"# {facts['doc']}{_limits(item)}"]
            lines.append(f"# {camel(item.name)} =" if value is None else f"{camel(item.name)} = {_toml(value)}")
        if section == METAQ1 and topics is not None:
            lines += ["", "# Only topics that have a table here, or that a name with * admits, are for 1.x clients."]
            lines.append(f"[{METAQ1}.topics]")
            for topic in topics:
                lines += ["", f"[{METAQ1}.topics.{_toml(topic.name)}]"]
                lines += [f"{_topic_key(key)} = {_toml(said.value)}" for key, said in topic.said.items()]
    return "\n".join(lines) + "\n"


def _limits(item: dataclasses.Field[Any]) -> str:
    facts = item.metadata
    said = []
    if facts.get("choices"):
        said.append("one of " + ", ".join(facts["choices"]))
    if facts.get("low") is not None:
        said.append(f"at least {facts['low']:,}".replace(",", " "))
    if facts.get("high") is not None:
        said.append(f"at most {facts['high']:,}".replace(",", " "))
    return f" ({', '.join(said)})" if said else ""


def _topic_key(key: str) -> str:
    """Return a TOML key: `numPartitions` for `num_partitions`, `group."G"` for the filter of a group."""
    head, dot, group = key.partition(".")
    return f"{head}.{_toml(group)}" if dot else camel(key)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return str(value)


def without_http(port: int | None, error: ModuleNotFoundError) -> str:
    """Return the text of the error that what the HTTP server runs on is not installed."""
    return f"httpPort={port} needs the package {error.name}: pip install 'pymetaq[http]', or leave httpPort out"
