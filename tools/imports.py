"""Who imports whom, read from the sources with `ast`: also imports inside functions and under TYPE_CHECKING."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

SOURCE = pathlib.Path(__file__).parent.parent / "src"


def module_name(path: pathlib.Path) -> str:
    """The dotted name of a source file: `src/metaq/store/disk.py` is `metaq.store.disk`."""
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SOURCE / "metaq").rglob("*.py"))}
"""Module → its file."""


def inside(module: str) -> str:
    """`metaq.store.reader` is `store.reader`; `metaq` itself is empty."""
    return module.removeprefix("metaq").removeprefix(".")


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node, those in functions and branches too; nothing of expressions, which hold no imports."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from statements(inner)


def imports(tree: ast.AST, module: str, *, package: bool) -> Iterator[str]:
    """Absolute names of what the module imports. `from metaq import store` yields `metaq.store`, and not `metaq`."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + (1 if package else 0)
                base = ".".join([*parts[:keep], *([base] if base else [])])
            modules = [f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in MODULES]
            yield from modules if len(modules) == len(node.names) else [base, *modules]


@functools.cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of a module, which several rules look at."""
    return ast.parse(MODULES[module].read_text())


@functools.cache
def imported(module: str) -> tuple[str, ...]:
    """Absolute names of all that a module of ours imports."""
    return tuple(imports(tree_of(module), module, package=MODULES[module].name == "__init__.py"))


@functools.cache
def imported_of_ours(module: str) -> frozenset[str]:
    """The modules of ours that a module imports, without the `metaq.` in front."""
    return frozenset(inside(name) for name in imported(module) if name in MODULES and name != "metaq")
