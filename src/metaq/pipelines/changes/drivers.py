"""The dialect of a database, with its driver: only what is used has to be installed."""

from __future__ import annotations

from metaq.errors import ConfigError, MetaqError
from metaq.pipelines.changes.dialect import Address, Dialect, told


def dialect_of(address: Address) -> Dialect:
    """Raises ConfigError: the driver is not installed; the text names the extra."""
    try:
        if address.kind == "mysql":
            from metaq.pipelines.changes.mariadb import MariaDb

            return MariaDb(address)
        from metaq.pipelines.changes.postgresql import PostgreSql

        return PostgreSql(address)
    except ImportError as fault:
        extra = "mysql" if address.kind == "mysql" else "postgres"
        raise ConfigError(f"target {address.kind} needs {fault.name}: pip install 'pymetaq[{extra}]'") from None


def try_to_reach(address: Address) -> None:
    """Raises: ConfigError: the driver is not installed. MetaqError: the database cannot be reached, or says no."""
    dialect = dialect_of(address)
    try:
        dialect.connect().close()
    except dialect.errors as fault:
        raise MetaqError(f"{address} could not be reached: {told(fault, address)}") from None
