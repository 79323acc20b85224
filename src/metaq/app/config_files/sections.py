"""Sections of a `metaq.toml`, and the option table that each has."""

from __future__ import annotations

from typing import Final

from metaq.dashboard_options import DashboardOptions
from metaq.options import BrokerOptions, Metaq1Options, NamesrvOptions, OptionTable, StoreOptions
from metaq.tls_options import TlsOptions

METAQ1: Final = "metaq1"
TLS: Final = "tls"

SECTIONS: Final[dict[str, type[OptionTable]]] = {
    "broker": BrokerOptions,
    "store": StoreOptions,
    METAQ1: Metaq1Options,
    "namesrv": NamesrvOptions,
    TLS: TlsOptions,
    "dashboard": DashboardOptions,
}
