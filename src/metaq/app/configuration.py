"""Configuration of one process: option tables, put together from flags, a file and the environment.

Flags beat the file (`metaq.app.config_files`), which beats the environment. What nobody has said follows from what
somebody has, as the addresses to listen on from the kind of the file, or is there by default.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from metaq.app.acl.place import acl_path
from metaq.app.addressing.exposure import check_exposure
from metaq.app.addressing.told import EVERYWHERE, listeners_of, told_name_servers
from metaq.app.config_files.keys import take_pairs, take_properties, take_setting
from metaq.app.config_files.sections import METAQ1, SECTIONS, TLS
from metaq.dashboard_options import DashboardOptions
from metaq.errors import ConfigError
from metaq.net.address import LOOPBACK
from metaq.option_table import (
    DERIVED,
    FROM_COMMAND_LINE,
    FROM_ENVIRONMENT,
    FROM_FILE,
    OptionOrigin,
    Origins,
)
from metaq.options import BrokerOptions, Metaq1Options, NamesrvOptions, StoreOptions
from metaq.store.offline.sizes import sizes_found
from metaq.tls_options import TlsOptions

if TYPE_CHECKING:
    from metaq.app.config_files.reading import ParsedFile
    from metaq.app.config_files.server_ini import ServerIni
    from metaq.app.partition_sections import TopicSection
    from metaq.broker.metaq1.settings import Metaq1Settings
    from metaq.model.metaq1.pair import PairSettings
    from metaq.model.metaq1.settings import PartitionRules

TLS_FILE: Final = "/etc/rocketmq/tls.properties"
"""Where RocketMQ looks for its `tls.properties` if nothing names another place."""


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


class _Values(dict[str, Any]):
    """Options of a section as they are put together: what is said last counts. Knows where each comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[str, OptionOrigin] = {}

    def say(self, given: Mapping[str, Any], kind: str, place: str) -> None:
        """Set options. Args: kind, place: as in `OptionOrigin`."""
        self.update(given)
        self.origins |= dict.fromkeys(given, OptionOrigin(kind, place))

    def imply(self, given: Mapping[str, Any], place: str) -> None:
        """Set those that nobody has set."""
        self.say({name: value for name, value in given.items() if name not in self}, DERIVED, place)


class _Loading:
    """A configuration while it is put together. Each source, in its turn, beats those in front of it."""

    def __init__(self, file: str | None, serving: Sequence[str]) -> None:
        self.file, self.where = file, file or ""
        self.serving = tuple(serving)
        self.values = {section: _Values() for section in SECTIONS}
        self.warnings: list[str] = []
        self.topics: tuple[TopicSection, ...] | None = None
        self.server_ini: ServerIni | None = None
        self.everywhere = False
        """The file is RocketMQ's or MetaQ 1.x's: they listen on all addresses when it names none, and its author relies on that."""
        self.guarded: frozenset[str] = frozenset()
        """Sections of servers that have accounts."""

    # -- what is said
    def read_environment(self, environment: Mapping[str, str]) -> None:
        if "broker" in self.serving and (address := environment.get("NAMESRV_ADDR")):
            self.values["broker"].say({"namesrv_addr": address}, FROM_ENVIRONMENT, "NAMESRV_ADDR")

    def read_file(self, file: str) -> None:
        from metaq.app.config_files.reading import ParsedFile, read_config_file  # most starts have no file

        parsed = read_config_file(file)
        if not isinstance(parsed, ParsedFile):
            self._take_server_ini(parsed, file)
        elif parsed.rocketmq:
            self._take_rocketmq(parsed, file)
        else:
            self._take_toml(parsed, file)

    def _take_server_ini(self, parsed: ServerIni, file: str) -> None:
        values = self.values[METAQ1]
        values.say(parsed.values, FROM_FILE, file)
        values.imply({"enable": True}, "a server.ini is loaded")
        self.warnings += parsed.warnings
        if METAQ1 not in self.serving:
            raise ConfigError(f"{file} is the configuration of a broker: start it by metaq broker")
        self.server_ini, self.topics, self.everywhere = parsed, parsed.sections, True
        self.serving = (METAQ1, *(section for section in self.serving if section != METAQ1))

    def _take_rocketmq(self, parsed: ParsedFile, file: str) -> None:
        self.everywhere = True
        said = _blank()
        takers = [section for section in self.serving if section != METAQ1]
        self.warnings += take_properties(parsed.pairs[""], file, said, takers)
        self._say(said, FROM_FILE, file)
        # Two of RocketMQ's defaults that are not ours: it always listens on the VIP port, and refuses SQL filters.
        its_own = {"vip_port_enable": True, "enable_property_filter": False}
        self.values["broker"].imply(its_own, "the file is RocketMQ's")
        if pathlib.Path(TLS_FILE).is_file():
            self.values[TLS].imply({"tls_config_file": TLS_FILE}, "RocketMQ looks there")

    def _take_toml(self, parsed: ParsedFile, file: str) -> None:
        for section, pairs in parsed.pairs.items():
            if section == METAQ1:
                from metaq.app import partition_sections

                pairs, self.topics = partition_sections.split_topics(pairs, file)  # noqa: PLW2901
            taken: dict[str, Any] = {}
            take_pairs(taken, SECTIONS[section], pairs, f"[{section}] of {file}")
            self.values[section].say(taken, FROM_FILE, file)

    def read_slave_file(self, file: str) -> None:
        """Read the `async_slave.properties` of MetaQ 1.x."""
        from metaq.app.config_files.properties import read_properties
        from metaq.app.metaq1_slave.properties import read_slave_properties, slave_properties_text

        slave, notes = read_slave_properties(file, read_properties(slave_properties_text(file), file))
        self.values[METAQ1].say(slave, FROM_FILE, file)
        self.values[METAQ1].imply({"enable": True}, "it is a slave of MetaQ 1.x")
        self.warnings += notes

    def read_command_line(self, settings: Sequence[str], flags: Mapping[str, Mapping[str, Any]]) -> None:
        said = _blank()
        for setting in settings:
            self.warnings += take_setting(setting, said, self.serving)
        self._say(said, FROM_COMMAND_LINE, "-o")
        for section, given in flags.items():
            pairs = {key: one for key, one in given.items() if one is not None}
            self.values[section].say(pairs, FROM_COMMAND_LINE, "a flag")

    def _say(self, said: Mapping[str, Mapping[str, Any]], kind: str, place: str) -> None:
        for section, pairs in said.items():
            self.values[section].say(pairs, kind, place)

    # -- what follows from it
    def locate_accounts(self, environment: Mapping[str, str]) -> None:
        """Find out which servers have accounts, and where their file is."""
        self.guarded = frozenset(
            section
            for section, table in (("broker", BrokerOptions), ("namesrv", NamesrvOptions))
            if section in self.serving and table.read(self.values[section], self.where)[0].acl_enable
        )
        for section in self.guarded:
            place = acl_path(self.file, environment)
            self.values[section].imply({"acl_path": place}, "the first place that may have it")

    def settle_addresses(self, *, insecure: bool) -> None:
        """Settle where servers listen, and check that who configures them means it."""
        for section in self.serving:
            if "bind_address" not in SECTIONS[section].spellings():
                continue
            values = self.values[section]
            if self.everywhere:
                values.imply({"bind_address": EVERYWHERE}, "the kind of the file")
            self._check_exposure(section, values.setdefault("bind_address", LOOPBACK), insecure=insecure)
            for host, _ in listeners_of(str(values.get("listeners") or "")).values():
                self._check_exposure(section, host, insecure=insecure)
            if insecure:  # whoever lets everybody delete topics at the broker wants the routes deleted, too
                values.imply({"remote_administration_enable": True}, "--insecure")

    def _check_exposure(self, section: str, address: object, *, insecure: bool) -> None:
        has_accounts, consent = section in self.guarded, self.everywhere or insecure
        self.warnings += check_exposure(section, str(address), has_accounts=has_accounts, consent=consent)

    def follow_metaq1(self) -> Metaq1Options:
        """Return the options of [metaq1], after what they mean for broker and store."""
        metaq1 = Metaq1Options.read(self.values[METAQ1], self.where)[0]
        if not metaq1.enable:
            return metaq1
        from metaq.app import identity, partition_sections  # here and not above: a broker without 1.x goes without

        if "broker" in self.guarded and not self.values["broker"].get("acl_metaq1_accounts"):
            self.warnings.append(
                "clients of MetaQ 1.x cannot sign what they ask for: with aclEnable=true they are answered 403, but from addresses "
                "in globalWhiteRemoteAddresses; aclMetaq1Accounts gives accounts to addresses"
            )
        for name in self.values[METAQ1]:
            partition_sections.check_value(name, getattr(metaq1, name))
        named = set(self.values[METAQ1])
        if self.server_ini is not None:  # 1.x's defaults hold as if the file named them, except the size of log files
            named |= metaq1.values().keys() - {"max_segment_size"}
        if self.topics is not None:
            self.warnings += partition_sections.notices(metaq1, self.topics, self.where)
        follows = identity.implied(metaq1, named, partition_sections.rules(metaq1, self.topics))
        for section, pairs in follows.items():
            self.values[section].imply(pairs, "options of MetaQ 1.x")
        return metaq1

    def fall_back(self, defaults: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what the command that was called wants where nothing else was said."""
        for section, fallback in defaults.items():
            values = self.values[section]
            # The sizes of files that are there: with other options RocketMQ and we would refuse the folder.
            found = sizes_found(StoreOptions.read({**fallback, **values})[0]) if section == "store" else {}
            values.imply(found, "the files that the store has")
            values.imply(fallback, "the command that was called")

    # -- the tables
    def made(self, metaq1: Metaq1Options, *, insecure: bool) -> Configuration:
        """Return the configuration. Args: metaq1: as `follow_metaq1` returned it."""
        values, where, ini = self.values, self.where, self.server_ini
        broker, store = BrokerOptions.read(values["broker"], where)[0], StoreOptions.read(values["store"], where)[0]
        if metaq1.enable:
            metaq1 = self._settled(metaq1, broker, store)
        if broker.http_port is not None:
            self._check_exposure("broker", broker.http_bind_address, insecure=insecure)
        namesrv = NamesrvOptions.read(values["namesrv"], where)[0]
        told_name_servers(namesrv)
        return Configuration(
            broker,
            store,
            metaq1,
            namesrv,
            tuple(self.warnings),
            self.topics,
            TlsOptions.read(values[TLS], where)[0],
            DashboardOptions.read(values["dashboard"], where)[0],
            ini.text if ini is not None else _server_ini_of(metaq1, self.topics or ()),
            ini.path if ini is not None else "",
            {section: one.origins for section, one in values.items()},
        )

    def _settled(self, metaq1: Metaq1Options, broker: BrokerOptions, store: StoreOptions) -> Metaq1Options:
        """Return the options of [metaq1] as those of broker and store leave them."""
        from metaq.app import identity  # as in `follow_metaq1`

        settled = identity.settled(metaq1, broker, store)
        if warning := identity.old_data(settled.data_path):
            self.warnings.append(warning)
        if self.server_ini is not None:
            self.warnings += identity.http_notices(settled, broker)
        return settled


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
    if environment is None:
        environment = os.environ
    loading = _Loading(file, serving)
    loading.read_environment(environment)
    if file is not None:
        loading.read_file(file)
    if metaslave is not None:
        loading.read_slave_file(metaslave)
    loading.read_command_line(settings, flags or {})
    loading.locate_accounts(environment)
    loading.settle_addresses(insecure=insecure)
    metaq1 = loading.follow_metaq1()
    loading.fall_back(defaults or {})
    return loading.made(metaq1, insecure=insecure)


def _server_ini_of(options: Metaq1Options, sections: Sequence[TopicSection]) -> bytes:
    if not options.enable:
        return b""
    from metaq.app.config_files.server_ini import written

    return written(options, sections)
