"""Which files a Python file needs: imports of the project's own modules, read with `ast` and followed to the end.

An import counts wherever it stands, in a function too, but for two kinds of modules that load on demand. A facade hands out
names of many modules, and who takes one needs only that one's. A dispatcher (the command line, the tests' `run_metaq`) runs
whatever it is asked for: who asks says so (`Step.uses`).
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import posixpath
from collections.abc import Iterable, Iterator

FACADES = ("metaq", "metaq.spark", "metaq.spark.decode", "metaq.spark.pipelines")
DISPATCHERS = (
    "metaq.cli.", "metaq.pipelines.catalogue", "tests.conftest", "tests.forked", "tests.spark.running", "tests.support",
)  # fmt: skip
"""Modules whose imports inside functions are on demand; with a dot at the end, all modules of that package."""

PACKAGES = {"src/metaq/": "src/", "tests/": "", "demo/": "", "fuzz/": "", "bench/": "bench/", "examples/": "examples/"}
"""Folder of sources → what is taken from the paths in it to make module names."""


@dataclasses.dataclass(frozen=True)
class Imports:
    """What a file imports, as names that still have to be found among the modules."""

    eager: tuple[str, ...]
    """When it is imported."""
    late: tuple[str, ...]
    """Inside functions."""
    homes: dict[str, str]
    """Name → the module that it is of, by the imports under TYPE_CHECKING: what a facade hands out."""


def module_of(path: str) -> str | None:
    """The module that a file is: `metaq.store.log` for `src/metaq/store/log/__init__.py`."""
    prefix = next((cut for start, cut in PACKAGES.items() if path.startswith(start)), None)
    if prefix is None or not path.endswith(".py"):
        return None
    return path.removeprefix(prefix).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _from(node: ast.ImportFrom, module: str, *, package: bool) -> str:
    """The absolute name of the module that `from ... import` names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + (1 if package else 0)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def read(text: str, module: str, *, package: bool) -> Imports:
    """The imports of a file's text. Raises SyntaxError."""
    eager: list[str] = []
    late: list[str] = []
    homes: dict[str, str] = {}

    def visit(node: ast.AST, into: list[str]) -> None:
        if _is_type_checking(node):
            for child in ast.walk(node):
                if isinstance(child, ast.ImportFrom):
                    home = _from(child, module, package=package)
                    homes.update({alias.asname or alias.name: f"{home}:{alias.name}" for alias in child.names})
            return
        if isinstance(node, ast.Import):
            into.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = _from(node, module, package=package)
            into.extend(f"{home}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            if name := _dotted(node):
                into.append(f"={name}")
                return
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            into.append(f"'{node.value}")
        inner = late if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else into
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(ast.parse(text), eager)
    return Imports(tuple(dict.fromkeys(eager)), tuple(dict.fromkeys(late)), homes)


class ImportGraph:
    """The modules among some files, and what each of them needs."""

    def __init__(self, root: pathlib.Path, files: Iterable[str]) -> None:
        self._root = root
        self.files = frozenset(files)
        self._modules = {module: path for path in sorted(self.files) if (module := module_of(path)) is not None}
        self._read: dict[str, Imports] = {}
        self._needed: dict[str, set[str]] = {}

    def _imports(self, path: str) -> Imports:
        if path not in self._read:
            module = module_of(path)
            assert module is not None
            text = (self._root / path).read_text(encoding="utf-8")
            self._read[path] = read(text, module, package=path.endswith("/__init__.py"))
        return self._read[path]

    def _taken(self, home: str, name: str) -> Iterator[str]:
        """The modules of `from HOME import NAME`."""
        if f"{home}.{name}" in self._modules:
            yield f"{home}.{name}"
        elif home in self._modules:
            yield home
            if (given := self._imports(self._modules[home]).homes.get(name)) is not None:
                yield from self._taken(*given.split(":"))

    def _named(self, imported: str, folder: str) -> Iterator[str]:
        """The modules that an entry of `Imports` means; of a loose script, those beside it."""
        if imported[0] == "'":  # a program or a plugin that is named: `python -m NAME`
            yield from [imported[1:]] if imported[1:] in self._modules else []
        elif imported[0] == "=":  # `metaq.spark.archive`, from a facade that was imported whole
            parts = imported[1:].split(".")
            for length in range(1, len(parts)):
                if (home := ".".join(parts[:length])) in FACADES:
                    yield from self._taken(home, parts[length])
        elif ":" in imported:
            home, name = imported.split(":")
            yield from self._taken(home, name)
        elif imported in self._modules:
            yield imported
        beside = posixpath.join(folder, imported.partition(":")[0] + ".py")
        if beside in self.files and (module := module_of(beside)) is not None:
            yield module

    def needed_by(self, path: str) -> set[str]:
        """The files that one file needs directly, with the packages around it, which Python imports before it."""
        if path not in self._needed:
            self._needed[path] = self._find_needed(path)
        return self._needed[path]

    def _find_needed(self, path: str) -> set[str]:
        module = module_of(path)
        if module is None:
            return set()
        found = self._imports(path)
        dispatches = any(f"{module}.".startswith(one) if one.endswith(".") else module == one for one in DISPATCHERS)
        names = [*found.eager, *([] if dispatches or module in FACADES else found.late)]
        if module in FACADES:
            names = [name for name in names if name[0] not in "'="]
        modules = {one for name in names for one in self._named(name, posixpath.dirname(path))}
        parts = module.split(".")
        modules |= {".".join(parts[:length]) for length in range(1, len(parts))} & self._modules.keys()
        return {self._modules[one] for one in modules} - {path}

    def closure(self, paths: Iterable[str]) -> set[str]:
        """The files that these need, themselves among them; of tests also every conftest.py on the way to them."""
        todo = [path for path in paths if path in self.files]
        found = set(todo)
        while todo:
            path = todo.pop()
            needed = set(self.needed_by(path))
            if path.startswith("tests/"):
                needed |= {f"{parent}/conftest.py" for parent in pathlib.PurePosixPath(path).parents} & self.files
            todo += needed - found
            found |= needed
        return found

    def modules_of(self, name: str) -> set[str]:
        """The files of a module, or of a whole package. Raises KeyError: there is no such module."""
        found = {path for module, path in self._modules.items() if f"{module}.".startswith(f"{name}.")}
        if not found:
            raise KeyError(name)
        return found
