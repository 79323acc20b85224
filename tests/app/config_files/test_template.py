"""A template has all options, and is read as what it was made of."""

from __future__ import annotations

import dataclasses

import pytest

from metaq.app.config_files.template import template
from metaq.app.configuration import load
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions


@pytest.mark.parametrize(
    "tables",
    [
        {"broker": BrokerOptions(), "store": StoreOptions(), "namesrv": NamesrvOptions()},
        {
            "broker": BrokerOptions(broker_name='a"b\\c', listen_port=0, auto_create_topic_enable=False),
            "store": StoreOptions(store_path_index="/elsewhere/index", flush_disk_type="SYNC_FLUSH"),
            "namesrv": NamesrvOptions(kv_config_path="/kv.json"),
        },
        {"store": StoreOptions(store_path_root_dir="/data/tab\tescape\x1b line\r\n\x7fend")},
    ],
    ids=["defaults", "changed", "control characters"],
)
def test_template_loads_back_unchanged(tmp_path, tables):
    """What --print-config writes is complete, and -c reads the same tables from it."""
    text = template(tables)
    file = tmp_path / "metaq.toml"
    file.write_text(text)
    got = load(str(file), environment={})
    assert {name: getattr(got, name) for name in tables} == tables
    for table in tables.values():
        for item in dataclasses.fields(table):
            assert item.metadata["doc"] in text
