"""The part of `Admin` about options of running servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metaq.admin.configuring import changing, reading
from metaq.admin.parts import AdminPart


class OptionCalls(AdminPart):
    """Methods of `Admin`, which raise what it says, too."""

    def broker_options(self, broker: str) -> reading.ServerOptions:
        """Return the options of a broker, `options`, each with `key`, `value` and where that comes from.

        Args: broker: its name (the master), or `host:port`. Raises also BrokerNotFound.
        """

        async def ask() -> reading.ServerOptions:
            return await reading.read(self._open, *await reading.find(self._open, broker))

        return self._run(ask())

    def change_broker_options(self, broker: str, options: Mapping[str, str]) -> list[changing.ChangedOption]:
        """Change hot options of a broker, all or none; they stay changed after a restart.

        Args:
            broker: its name (the master), or `host:port`.
            options: key → value, as text.

        Returns: `server`, `key`, `before`, `after` of each; `at_once`: it is in force.
        Raises also BrokerNotFound, ConfigError: there is no such option, it needs a restart, or the value is wrong.
        """
        return self._run(changing.change_broker(self._open, broker, options))

    def compare_brokers(self, brokers: Sequence[str] = (), *, cluster: str | None = None) -> reading.OptionDifferences:
        """Return how brokers differ in their options: those named, those of a cluster, or all.

        Returns: `different`, key → server → value, of options that should be the same; `own`, the same of those that should not;
        `failed`, server → why it could not be asked. Raises also BrokerNotFound.
        """

        async def ask() -> reading.OptionDifferences:
            if brokers:
                servers = dict([await reading.find(self._open, broker) for broker in brokers])
            else:
                servers = await reading.all_brokers(self._open, cluster)
            return await reading.compare(self._open, servers)

        return self._run(ask())

    def name_server_options(self, at: str | None = None) -> list[reading.ServerOptions]:
        """Return the options of each name server, or of the one at `host:port`, as `broker_options` does."""

        async def ask() -> list[reading.ServerOptions]:
            servers = changing.name_servers(self._open, at)
            return [await reading.read(self._open, name, address, namesrv=True) for name, address in servers]

        return self._run(ask())

    def change_name_server_options(
        self, options: Mapping[str, str], *, at: str | None = None
    ) -> list[changing.ChangedOption]:
        """Change hot options of every name server, or of the one at `host:port`. Args, returns, raises: as `change_broker_options`."""
        return self._run(changing.change_name_servers(self._open, at, options))

    def compare_name_servers(self) -> reading.OptionDifferences:
        """Return how the name servers differ in their options, as `compare_brokers` does."""
        return self._run(reading.compare(self._open, dict(changing.name_servers(self._open, None)), namesrv=True))
