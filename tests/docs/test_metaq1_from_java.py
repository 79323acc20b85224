"""The right columns of docs/metaq1_from_java.md: every name is there, and every argument that a call shows."""

from __future__ import annotations

import ast
import concurrent.futures
import inspect
import re
import textwrap
from typing import Any

import pytest

import metaq
from metaq import errors, metaq1, xa
from metaq.metaq1 import ConsumerConfig, MetaClientConfig, ZKConfig, http
from metaq.metaq1.http import HttpClientConfig
from tests.support import ROOT

PAGE = (ROOT / "docs" / "metaq1_from_java.md").read_text()
NAMES = {
    **{name: value for name, value in vars(errors).items() if inspect.isclass(value)},
    **{name: getattr(metaq1, name) for name in metaq1.__all__},
    **{name: getattr(http, name) for name in http.__all__ if name != "aio"},
    "concurrent": concurrent, "dict": dict, "TypeError": TypeError, "xa": xa,
}  # fmt: skip


def rows() -> list[tuple[str, str]]:
    """(Java, Python) of all tables that have these columns."""
    tables = re.findall(r"^\| Java(?: property)? \| Python \|\n\|---\|---\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    return [
        tuple(cell.strip() for cell in line.strip("|").split(" | ", 1))
        for table in tables
        for line in table.splitlines()
    ]


ROWS = rows()
SPANS = sorted({span for _, python in ROWS for span in re.findall(r"`([^`]+)`", python)})


def attribute_of(owner: Any, name: str) -> Any:
    """An attribute, also one that only instances have."""
    if hasattr(owner, name):
        return getattr(owner, name)
    assert inspect.isclass(owner), f"{owner} has no {name}"
    body = ast.parse(textwrap.dedent(inspect.getsource(owner.__init__)))
    given = {
        node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert name in given, f"{owner} has no {name}"
    return None


def resolved(node: ast.expr) -> Any:
    """What an expression of the page means. Raises AssertionError: there is nothing of this name, or no such argument."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id=name):
            assert name in NAMES, f"there is no {name}"
            return NAMES[name]
        case ast.Attribute(value=value, attr=name):
            return attribute_of(resolved(value), name)
        case ast.Call(func=function, args=given, keywords=keywords):
            owner = resolved(function)
            parameters = list(inspect.signature(owner).parameters)
            if isinstance(function, ast.Attribute) and parameters[:1] == ["self"]:
                del parameters[0]
            assert [argument.id for argument in given] == parameters[: len(given)], f"{owner} takes {parameters}"
            assert {keyword.arg for keyword in keywords} <= set(parameters[len(given) :]), f"{owner} takes {parameters}"
            return None
    raise AssertionError(f"the page has {ast.unparse(node)}: no name and no call")


def test_the_tables_are_found() -> None:
    assert len(ROWS) > 100
    assert all(java and python for java, python in ROWS)


@pytest.mark.parametrize("span", SPANS)
def test_what_the_right_column_names_is_there(span: str) -> None:
    """With these arguments, under these names."""
    resolved(ast.parse(span, mode="eval").body)


@pytest.mark.parametrize(
    "span",
    ["MessageProducer.sendMessage", "Missing", "MessageProducer.submit(text)", "ConsumerConfig.group(x=1)", "a b"],
)
def test_what_is_not_there_is_found_out(span: str) -> None:
    with pytest.raises((AssertionError, SyntaxError, TypeError)):
        resolved(ast.parse(span, mode="eval").body)


def test_the_page_has_every_option() -> None:
    """Of the client and of consumers, and the defaults that it names."""
    for kind in (MetaClientConfig, ConsumerConfig, ZKConfig):
        for name in kind.__struct_fields__:
            assert f"`{kind.__name__}.{name}`" in PAGE or f"{kind.__name__}({name})" in PAGE, name
    client, consumer, zookeeper = MetaClientConfig(server_url="meta://h"), ConsumerConfig("g"), ZKConfig()
    shown = {
        "max_reconnect_times`, 350": client.max_reconnect_times == 350,
        "max_pending_bytes`, 64 MiB": client.max_pending_bytes == 64 << 20,
        "max_pending_messages`, 100 000": client.max_pending_messages == 100_000,
        "message_ids_cache_size`, 4096": client.message_ids_cache_size == 4096,
        "max_read_buffer`, 2 MiB": client.max_read_buffer == 2 << 20,
        "max_message_bytes` (1 MiB": client.max_message_bytes == 1 << 20,
        "recover_message_interval`, 300 s": client.recover_message_interval == 300,
        "zk_sync_time`: 30, 30 and 5 s": (
            zookeeper.zk_session_timeout,
            zookeeper.zk_connection_timeout,
            zookeeper.zk_sync_time,
        )
        == (30, 30, 5),
        "fetch_timeout`, 10 s": consumer.fetch_timeout == 10,
        "max_delay_fetch_time`, 5 s": consumer.max_delay_fetch_time == 5,
        "commit_offset_period`, 5 s": consumer.commit_offset_period == 5,
        "max_fetch_retries`, 5": consumer.max_fetch_retries == 5,
        "max_increase_fetch_data_retries`, 5": consumer.max_increase_fetch_data_retries == 5,
    }
    assert {text: text in PAGE and true for text, true in shown.items()} == dict.fromkeys(shown, True)


def test_the_page_has_every_option_of_http() -> None:
    """Beside those of all factories, and the defaults that it names."""
    own = set(HttpClientConfig.__struct_fields__) - (set(MetaClientConfig.__struct_fields__) - {"server_url"})
    assert [name for name in sorted(own) if f"`HttpClientConfig.{name}`" not in PAGE] == []
    config = HttpClientConfig(server_url="http://h")
    shown = {
        "connect_timeout`, 3 s": config.connect_timeout == 3,
        "HttpClientConfig.timeout`, 30 s": config.timeout == 30,
        "max_connections`, 20": config.max_connections == 20,
        "keep_alive`, 60 s": config.keep_alive == 60,
    }
    assert {text: text in PAGE and true for text, true in shown.items()} == dict.fromkeys(shown, True)


def test_every_public_name_of_the_package_is_on_the_page() -> None:
    """Who looks for one finds where it belongs."""
    names = {*metaq1.__all__, *http.__all__} - {"aio"}
    missing = sorted(name for name in names if not re.search(rf"\b{name}\b", PAGE))
    assert missing == []
    assert metaq.metaq1 is metaq1
