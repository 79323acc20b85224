"""Every name that users import says what it is: modules, classes and their fields, functions, constants.

What stands here is what the site shows (`tools/site_hooks.py`): a docstring counts where it is written, at the name itself. A
method that takes over that of its base class in `help()` has none on the site.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pathlib
import re
import typing
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from metaq import errors

PUBLIC = (
    "metaq", "metaq.admin", "metaq.aio", "metaq.errors", "metaq.idempotence", "metaq.logging_handler", "metaq.metaq1", "metaq.metaq1.aio",
    "metaq.metaq1.http", "metaq.metaq1.http.aio", "metaq.model", "metaq.options", "metaq.outbox", "metaq.spark", "metaq.spark.decode",
    "metaq.spark.pipelines", "metaq.testing", "metaq.testing.checking", "metaq.testing.nemesis", "metaq.testing.trial",
    "metaq.testing.workload", "metaq.xa", "metaq.xa.sessions",
)  # fmt: skip
LEAST = {"modules": 23, "classes": 350, "functions": 1300, "fields": 1700, "annotations": 4000, "constants": 20}
"""How many there are at least: a test of none would pass, too."""
TIMES = re.compile(r"timeout|.*_timeout|.*interval|.*_after|linger|patience|hold")
"""Parameters that are a time, and do not say in their names in what."""
UNITS = re.compile(r"\bseconds?\b|\bms\b|\d s\b|\bs\b[,.;)]")
ELSEWHERE = re.compile(r"\b[Aa]s (of |in |by |on |with )?`|\b[Ss]ee `")
"""A docstring that points to another one, which says the rest."""
ERRORS = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    """A public function or method, as it is written."""

    name: str
    node: Definition
    around: str
    """The docstrings of its class, if it has one."""
    module: str
    """That it is written in."""


# ---- the sources -------------------------------------------------------------------------------------------------


@functools.cache
def tree(path: str) -> ast.Module:
    return ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))


def own(module: str) -> bool:
    return module.partition(".")[0] == "metaq"


def source(module: str) -> ast.Module:
    return tree(str(importlib.import_module(module).__file__))


def definition(found: type) -> ast.ClassDef:
    """The class statement of a class of ours."""
    names = found.__qualname__.split(".")
    body: list[ast.stmt] = source(found.__module__).body
    for name in names:
        node = next(one for one in body if isinstance(one, ast.ClassDef) and one.name == name)
        body = node.body
    return node


def bases(found: type) -> list[tuple[str, ast.ClassDef]]:
    """The class and those above it with their modules, as far as they are ours: the site shows what a class inherits with it."""
    return [(one.__module__, definition(one)) for one in found.__mro__ if own(one.__module__)]


def docstring(node: ast.ClassDef | Definition | ast.Module) -> str:
    return ast.get_docstring(node) or ""


def methods(node: ast.ClassDef) -> dict[str, Definition]:
    """Those that are public, and the constructor. Of several with a name (overloads, setters) the one with a docstring."""
    found: dict[str, Definition] = {}
    for one in node.body:
        if isinstance(one, Definition) and (not one.name.startswith("_") or one.name == "__init__"):
            before = found.get(one.name)
            found[one.name] = before if before is not None and docstring(before) else one
    return found


def assigned(body: Iterable[ast.stmt], within: str = "") -> Iterator[tuple[str, bool]]:
    """(name, whether it says what it is) of what a module, a class or a constructor (`within="self"`) assigns to."""
    statements = list(body)
    for one, behind in zip(statements, [*statements[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign):
            targets: list[ast.expr] = [one.target]
        elif isinstance(one, ast.Assign):
            targets = [each for target in one.targets for each in getattr(target, "elts", [target])]
        else:
            continue
        text = (
            isinstance(behind, ast.Expr)
            and isinstance(behind.value, ast.Constant)
            and isinstance(behind.value.value, str)
        )
        # An option's text is an argument: `metaq describe` and the site have it from there.
        option = isinstance(one.value, ast.Call) and getattr(one.value.func, "id", "") == "option"
        for target in targets:
            if within and isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == within:
                yield target.attr, text or option
            elif not within and isinstance(target, ast.Name):
                yield target.id, text or option


# ---- the names ---------------------------------------------------------------------------------------------------


@functools.cache
def exported(package: str) -> dict[str, object]:
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__ if not name.startswith("__")}


def classes(package: str) -> Iterator[tuple[str, type]]:
    for name, value in exported(package).items():
        if inspect.isclass(value) and own(value.__module__):
            yield f"{package}.{name}", value


def functions(package: str) -> Iterator[Function]:
    for name, value in exported(package).items():
        if inspect.isroutine(value):
            home = inspect.unwrap(value).__module__
            body = source(home).body
            node = next(one for one in body if isinstance(one, Definition) and one.name == value.__name__)
            yield Function(f"{package}.{name}", node, "", home)
    for name, found in classes(package):
        given: set[str] = set()
        above = bases(found)
        for home, node in above:
            around = "\n".join(docstring(one) for one in (node, above[0][1]))
            for method, one in methods(node).items():
                if method not in given:
                    given.add(method)
                    yield Function(f"{name}.{method}", one, around, home)


def fields(package: str) -> Iterator[tuple[str, bool]]:
    """Fields of classes, members of enumerations, attributes that a constructor sets; and whether one is described."""
    for name, found in classes(package):
        above = [node for _, node in bases(found)]
        text = "\n".join(part for node in above for part in (docstring(node), *map(docstring, constructors(node))))
        described: dict[str, bool] = {}
        for node in above:
            inner = (pair for one in constructors(node) for pair in assigned(one.body, "self"))
            for field, said in (*assigned(node.body), *inner):
                if not field.startswith("_"):
                    described[field] = described.get(field, False) or said or names(text, field)
        yield from ((f"{name}.{field}", said) for field, said in described.items())


def constructors(node: ast.ClassDef) -> list[Definition]:
    return [one for name, one in methods(node).items() if name == "__init__"]


def names(text: str, field: str) -> bool:
    """Whether a class's docstring describes a field: `field`, or, as an argument, its name and a colon."""
    return bool(re.search(rf"`{field}`|^ *(Args: )?(\w+, )*{field}(, \w+)*:", text, re.MULTILINE))


def constants(package: str) -> Iterator[tuple[str, bool]]:
    for name, value in exported(package).items():
        if not inspect.isclass(value) and not inspect.isroutine(value) and not inspect.ismodule(value):
            yield f"{package}.{name}", constant(package, name)


def constant(module: str, name: str) -> bool:
    """Whether a constant has a docstring where it is made: behind the imports that lead there."""
    body = source(module).body
    made = dict(assigned(body))
    if name in made:
        return made[name]
    home = next(
        str(one.module)
        for one in body
        if isinstance(one, ast.ImportFrom) and any((each.asname or each.name) == name for each in one.names)
    )
    return constant(home, name)


# ---- what they say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_has_a_docstring(package):
    assert docstring(source(package))
    assert [name for name, found in classes(package) if not docstring(definition(found))] == []
    silent = [one.name for one in functions(package) if one.node.name != "__init__" and not docstring(one.node)]
    assert silent == []


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_field_and_constant_is_described(package):
    """A field by a text behind it, or by its class, which names it in backticks or among its `Args`."""
    assert [name for name, said in fields(package) if not said] == []
    assert [name for name, said in constants(package) if not said] == []


@pytest.mark.parametrize("package", PUBLIC)
def test_args_name_every_parameter(package):
    """Where a docstring describes parameters, none is forgotten. `clock` is for tests, and everywhere the same."""
    missing = []
    for name, node, around, _ in functions(package):
        text = docstring(node) or (around if node.name == "__init__" else "")
        if re.search(r"\bArgs\b", text) and not ELSEWHERE.search(text):
            missing += [f"{name}({one})" for one in parameters(node) if not re.search(rf"\b{one}\b", text)]
    assert missing == []


@pytest.mark.parametrize("package", PUBLIC)
def test_times_have_units(package):
    missing = []
    for name, node, around, _ in functions(package):
        text = docstring(node) + (around if node.name == "__init__" else "")
        if not UNITS.search(text) and not ELSEWHERE.search(text):
            missing += [f"{name}({one})" for one in parameters(node) if TIMES.fullmatch(one)]
    assert missing == []


@pytest.mark.parametrize("package", PUBLIC)
def test_errors_that_a_function_raises_itself_are_named(package):
    missing = []
    for name, node, around, _ in functions(package):
        text = docstring(node) + (around if node.name == "__init__" else "")
        if not re.search(r"[Rr]aises?[^.]* as\b", text):
            missing += [f"{name}: {one}" for one in sorted(raised(node)) if one not in text]
    assert missing == []


def test_errors_that_docstrings_name_can_be_imported():
    """From `metaq.errors`, which has what users meet."""
    hidden = ERRORS - set(errors.__all__)
    texts = ((one.name, docstring(one.node)) for package in PUBLIC for one in functions(package))
    assert [(name, error) for name, text in texts for error in hidden if re.search(rf"\b{error}\b", text)] == []


@pytest.mark.parametrize("package", PUBLIC)
def test_what_none_means_is_said(package):
    """Of what returns something or None."""
    missing = []
    for name, node, _, _ in functions(package):
        text = docstring(node)
        parts = ast.unparse(node.returns).split(" | ") if node.returns is not None else []
        if len(parts) > 1 and "None" in parts and "None" not in text and not ELSEWHERE.search(text):
            missing.append(name)
    assert missing == []


def parameters(node: Definition) -> list[str]:
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [one.arg for one in given if one.arg not in {"self", "cls", "clock"} and not one.arg.startswith("_")]


def raised(node: Definition) -> set[str]:
    """Errors of MetaQ, and those of wrong arguments, that a function makes and raises in its own body."""
    return {
        one.exc.func.id
        for one in ast.walk(node)
        if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call) and isinstance(one.exc.func, ast.Name)
    } & (ERRORS | {"TypeError", "ValueError"})


# ---- what they take and return -----------------------------------------------------------------------------------

MADE = re.compile(r"\bmade by\s+`", re.IGNORECASE)
"""A class whose objects users get, and never make: its constructor is not theirs."""
INTERNAL: dict[str, str] = {
    "metaq.client.observing.observing.Metrics": "stands for `ClientMetrics`, which clients do not load unless they are given one",
    "metaq.client.transactions.transaction.TransactionBase": "bounds a type variable: producers return the `Transaction` of their module",
    "metaq.model.trace_context.SpanProvider": "stands for OpenTelemetry's TracerProvider, which is not ours and may not be installed",
    "metaq.store.disk.Mapped": "of the calls by which the store uses a `FaultyDisk`; tests only steer it",
}
"""Class that is not exported although a public name takes or returns it → why not. May only become shorter."""


class Absent(type):
    """A module that is not installed, and all that is in it."""

    def __getattr__(cls, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _: object) -> Absent:
        return cls


class Nothing(metaclass=Absent):
    pass


@functools.cache
def namespace(module: str) -> dict[str, object]:
    """What annotations of a module may name, also what it imports for type checkers only."""
    found = dict(vars(importlib.import_module(module)))
    for block in source(module).body:
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING"):
            for statement in block.body:
                try:
                    exec(ast.unparse(statement), found)
                except ModuleNotFoundError as error:
                    assert isinstance(statement, ast.Import | ast.ImportFrom)
                    assert not own(error.name or "")
                    found |= {(one.asname or one.name).partition(".")[0]: Nothing for one in statement.names}
    return found


def annotations(package: str) -> Iterator[tuple[str, ast.expr, str]]:
    """(where, annotation, its module) of public functions and methods, and of fields."""
    for function in functions(package):
        node = function.node
        if node.name == "__init__" and MADE.search(docstring(node) + function.around):
            continue
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        for one in given:
            if one is not None and one.annotation is not None and not one.arg.startswith("_"):
                yield f"{function.name}({one.arg})", one.annotation, function.module
        if node.returns is not None:
            yield f"{function.name}()", node.returns, function.module
    for name, found in classes(package):
        for home, above in bases(found):
            inner = [one for made in constructors(above) for one in made.body]
            for one in (*above.body, *inner):
                if isinstance(one, ast.AnnAssign):
                    field = one.target.attr if isinstance(one.target, ast.Attribute) else ast.unparse(one.target)
                    if not field.startswith("_"):
                        yield f"{name}.{field}", one.annotation, home


def named(annotation: object, module: str) -> Iterator[type]:
    """The classes of ours in an annotation, its aliases and type variables."""
    if isinstance(annotation, str):
        yield from named(eval(annotation, namespace(module)), module)
    elif isinstance(annotation, typing.ForwardRef):
        yield from named(annotation.__forward_arg__, module)
    elif isinstance(annotation, typing.TypeVar):
        for one in (annotation.__bound__, *annotation.__constraints__):
            yield from named(one, module)
    elif isinstance(annotation, list | tuple):  # the arguments of a Callable
        for one in annotation:
            yield from named(one, module)
    else:
        if inspect.isclass(annotation) and own(annotation.__module__):
            yield annotation
        # Of a generic class its origin, too: `Reader[Order]` is a Reader.
        if typing.get_origin(annotation) is not typing.Literal:
            yield from named(typing.get_args(annotation), module)
            origin = typing.get_origin(annotation)
            if inspect.isclass(origin) and own(origin.__module__):
                yield origin


@functools.cache
def not_exported() -> dict[str, set[str]]:
    """Class of ours that no public module exports → where public names take or return it."""
    public = {value for package in PUBLIC for _, value in classes(package)}
    found: dict[str, set[str]] = {}
    for package in PUBLIC:
        for where, annotation, module in annotations(package):
            for one in named(ast.unparse(annotation), module):
                if one not in public:
                    found.setdefault(f"{one.__module__}.{one.__qualname__}", set()).add(where)
    return found


def test_what_public_names_take_and_return_is_exported():
    """So users can name it in annotations of theirs, and find it on the site."""
    assert {name: places for name, places in not_exported().items() if name not in INTERNAL} == {}


def test_every_exception_is_needed():
    assert INTERNAL.keys() - not_exported().keys() == set()


def test_there_are_many():
    found = {
        "modules": len(PUBLIC),
        "classes": len({value for package in PUBLIC for _, value in classes(package)}),
        "functions": sum(1 for package in PUBLIC for _ in functions(package)),
        "fields": sum(1 for package in PUBLIC for _ in fields(package)),
        "annotations": sum(1 for package in PUBLIC for _ in annotations(package)),
        "constants": sum(1 for package in PUBLIC for _ in constants(package)),
    }
    assert {kind: count for kind, count in found.items() if count < LEAST[kind]} == {}
