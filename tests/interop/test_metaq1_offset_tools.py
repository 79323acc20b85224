"""`metaq meta1 show-offset`, `copy-offsets` and `offset-table`, with a real ZooKeeper, MariaDB and PostgreSQL."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaq.cli.meta1 import offsets as command
from metaq.metaq1 import MysqlOffsetStorage, Partition, PostgresqlOffsetStorage, StoredOffset
from metaq.registry.offset_table import TABLE
from metaq.sql.opening import opened
from tests.interop import postgresql
from tests.interop.mariadb import running as mariadb_running
from tests.interop.metaq1 import Zookeeper
from tests.support import run_metaq

pytestmark = pytest.mark.interop
_roots = (f"/tools-{number}" for number in itertools.count())
NEGATIVE = -5468926395948204032


@pytest.fixture
def root() -> str:
    return next(_roots)


@pytest.fixture(params=["mysql", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "mysql":
        with mariadb_running(tmp_path) as address:
            with opened(f"mysql://{address}/information_schema") as connection:
                connection.cursor().execute("CREATE DATABASE shop")
            yield f"mysql://{address}/shop"
    else:
        with postgresql.running() as address:
            yield f"postgresql://{address}/postgres"


def told(*words: str, code: int = 0) -> Any:
    done = run_metaq("meta1", *words, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def write(zookeeper: Zookeeper, root: str, **texts: str) -> None:
    """Of `group_topic_broker_number`."""
    with zookeeper.nodes() as nodes:
        for name, text in texts.items():
            group, topic, *part = name.split("_")
            path = f"{root}/consumers/{group}/offsets/{topic}/{'-'.join(part)}"
            nodes.client.create(path, text.encode(), makepath=True)


def nodes_of(zookeeper: Zookeeper, root: str) -> dict[str, tuple[str | None, bool]]:
    with zookeeper.nodes() as nodes:
        tree = nodes.tree(f"{root}/consumers")
    start = f"{root}/consumers/"
    return {
        path.removeprefix(start).replace("/offsets/", " "): (node.text, node.ephemeral)
        for path, node in tree.items()
        if node.text
    }


def brief(found: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (one["group"], one["topic"], one["partition"], one["to_partition"], one["outcome"]) for one in found["offsets"]
    ]


def test_copies_to_another_broker_id_never_overwrite(zookeeper: Zookeeper, root: str) -> None:
    """As CopyOffsetInZk: of all groups, a range of partitions of a topic, perhaps to other numbers."""
    write(
        zookeeper, root, g_orders_0_0="7-100", g_orders_0_1=f"{NEGATIVE}-200", g_orders_0_2="-1-300", g_orders_1_4="9-1",
        h_orders_0_1="500", h_other_0_1="1-1", g_orders_0_10="5-5", odd_orders_0_1="0-max",
    )  # fmt: skip
    at = ("--zookeeper", zookeeper.address, "--root", root)
    words = ("copy-offsets", "--topic", "orders", "--source", "0", "--target", "1", "--start", "0", "--end", "2", *at)
    planned = told(*words, "--target-start", "4", "--dry-run")
    assert brief(planned) == [
        ("g", "orders", "0-0", "1-4", "there"),
        ("g", "orders", "0-1", "1-5", "copied"),
        ("g", "orders", "0-2", "1-6", "copied"),
        ("h", "orders", "0-1", "1-5", "copied"),
        ("odd", "orders", "0-1", "1-5", "unreadable"),
    ]
    before = nodes_of(zookeeper, root)
    assert len(before) == 8
    done = told(*words, "--target-start", "4")
    assert (brief(done), done["dry_run"]) == (brief(planned), False)
    assert done["offsets"][0] | {} == {
        "group": "g", "topic": "orders", "partition": "0-0", "to_partition": "1-4", "text": "7-100", "outcome": "there",
        "there": "9-1",
    }  # fmt: skip
    added = {
        "g orders/1-5": (f"{NEGATIVE}-200", False),
        "g orders/1-6": ("-1-300", False),
        "h orders/1-5": ("-1-500", False),
    }
    assert nodes_of(zookeeper, root) == before | added
    assert [outcome for *_, outcome in brief(told(*words, "--target-start", "4"))] == ["there"] * 4 + ["unreadable"]
    one = told(*words, "--group", "h")
    assert brief(one) == [("h", "orders", "0-1", "1-1", "copied")]


def test_copies_from_zookeeper_to_a_table_and_back(zookeeper: Zookeeper, root: str, url: str) -> None:
    """What a consumer reads afterwards is what stood there."""
    write(zookeeper, root, g_orders_0_0="7-100", g_orders_0_1=f"{NEGATIVE}-{2**40}", h_other_3_11="1-1")
    at = ("--zookeeper", zookeeper.address, "--root", root, "--database", url)
    missing = run_metaq("meta1", "copy-offsets", "--to", "database", *at)
    assert missing.returncode == 1
    assert "metaq meta1 offset-table --create" in missing.stderr
    assert told("offset-table", "--database", url, "--create")["created"]
    storage = (MysqlOffsetStorage if url.startswith("mysql") else PostgresqlOffsetStorage)(url)
    storage.commit_offset("h", [StoredOffset("other", Partition(3, 11), 77, 5)])
    done = told("copy-offsets", "--to", "database", *at)
    assert brief(done) == [
        ("g", "orders", "0-0", "0-0", "copied"),
        ("g", "orders", "0-1", "0-1", "copied"),
        ("h", "other", "3-11", "3-11", "there"),
    ]
    assert storage.load("orders", "g", Partition(0, 1)) == StoredOffset("orders", Partition(0, 1), 2**40, NEGATIVE)
    assert storage.load("other", "h", Partition(3, 11)) == StoredOffset("other", Partition(3, 11), 77, 5)
    storage.commit_offset("new", [StoredOffset("orders", Partition(0, 0), 55)])
    storage.close()
    before = nodes_of(zookeeper, root)
    back = told("copy-offsets", "--to", "zookeeper", *at)
    assert brief(back)[-1] == ("new", "orders", "0-0", "0-0", "copied")
    assert [one["outcome"] for one in back["offsets"]] == ["there", "there", "there", "copied"]
    assert nodes_of(zookeeper, root) == before | {"new orders/0-0": ("-1-55", False)}
    within = told("copy-offsets", "--database", url, "--group", "g", "--source", "0", "--target", "2")
    assert brief(within) == [("g", "orders", "0-0", "2-0", "copied"), ("g", "orders", "0-1", "2-1", "copied")]
    table = run_metaq("meta1", "copy-offsets", "--to", "zookeeper", *at)
    assert "2 copied from the table" in table.stdout
    assert "unchanged: the offset 1-1 exists" in table.stdout


def test_show_offset(zookeeper: Zookeeper, root: str, url: str) -> None:
    write(zookeeper, root, g_orders_0_0="7-100", g_orders_0_10="-1-5", g_other_0_0="0-max", h_orders_0_0="8-8")
    at = ("--zookeeper", zookeeper.address, "--root", root)
    assert told("show-offset", "g", "--topic", "orders", *at)["offsets"] == [
        {"group": "g", "topic": "orders", "partition": "0-0", "offset": 100, "message_id": 7},
        {"group": "g", "topic": "orders", "partition": "0-10", "offset": 5, "message_id": None},
    ]
    every = told("show-offset", *at)
    assert len(every["offsets"]) == 3
    assert every["unreadable"] == [{"group": "g", "topic": "other", "partition": "0-0", "text": "0-max"}]
    assert [one["group"] for one in told("show-offset", "--topic", "orders", "--partition", "0-0", *at)["offsets"]] == [
        "g",
        "h",
    ]
    nobody = run_metaq("meta1", "show-offset", "nobody", *at)
    assert (nobody.returncode, nobody.stdout) == (3, "")
    run_metaq("meta1", "offset-table", "--database", url, "--create")
    run_metaq("meta1", "copy-offsets", "--to", "database", "--database", url, *at)
    assert told("show-offset", "h", "--database", url)["offsets"] == [
        {"group": "h", "topic": "orders", "partition": "0-0", "offset": 8, "message_id": 8}
    ]
    shown = run_metaq("meta1", "show-offset", "h", "--database", url)
    assert shown.stdout.split() == [
        *["group", "topic", "partition", "offset", "message", "id", "h", "orders", "0-0", "8", "8"]
    ]


def test_offset_table(url: str) -> None:
    """The statements make it; a table with small columns is told; a password is shown nowhere."""
    shown = run_metaq("meta1", "offset-table", "--database", url.replace("@", ":hidden@"))
    assert shown.returncode == 0
    assert "hidden" not in shown.stdout + shown.stderr
    assert ("BIGINT" in shown.stdout, "INDEX" in shown.stdout) == (True, True)
    with opened(url) as connection:
        for statement in shown.stdout.replace(TABLE, "by_hand").split(";\n"):
            if statement.strip():
                connection.cursor().execute(statement)
        connection.commit()
    assert told("offset-table", "--database", url, "--table", "by_hand", "--create")["narrow_columns"] == {}
    quote = "`" if url.startswith("mysql") else '"'
    with opened(url) as connection:
        columns = f"id INT, topic VARCHAR(99), {quote}partition{quote} VARCHAR(99), group_id VARCHAR(99)"
        connection.cursor().execute(f"CREATE TABLE old ({columns}, {quote}offset{quote} INT, msg_id BIGINT)")
        connection.commit()
    assert told("offset-table", "--database", url, "--table", "old", "--create")["narrow_columns"] == {
        "offset": 2**31 - 1
    }
    wrong = run_metaq("meta1", "offset-table", "--database", url.replace("@", ":hidden@") + "_", "--create")
    assert wrong.returncode == 1
    assert "hidden" not in wrong.stderr
    assert command.TABLE == TABLE


def test_words_that_do_not_say_what_goes_where() -> None:
    at = ("--zookeeper", "127.0.0.1:1")
    for words, said in (
        (("copy-offsets", *at), "nothing would be copied"),
        (("copy-offsets", "--target", "1", *at), "of which broker"),
        (("copy-offsets", "--source", "1", "--target", "1", *at), "nothing would be copied"),
        (("copy-offsets", "--source", "1", "--target-start", "1", *at), "say both"),
        (("copy-offsets", "--source", "0", "--target", "1", "--start", "3", "--end", "1", *at), "in front of"),
        (("copy-offsets", "--to", "database", *at), "needs both"),
        (("copy-offsets", "--to", "nowhere", *at), "need zookeeper or database"),
        (("show-offset",), "one of --zookeeper and --database"),
        (("show-offset", *at, "--database", "mysql://a@b/c"), "one of --zookeeper and --database"),
        (("show-offset", "--database", "oracle://x"), "need mysql"),
        (("offset-table", "--database", "mysql://a@b/c", "--table", "a b"), "letters"),
    ):
        done = run_metaq("meta1", *words)
        assert done.returncode in (1, 2), (words, done)
        assert said in " ".join(done.stderr.split()), (words, done.stderr)
