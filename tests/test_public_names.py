"""Every name that users import says what it is: modules, classes, functions, and the methods and properties of classes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest

PUBLIC = (
    "metaq", "metaq.admin", "metaq.aio", "metaq.idempotence", "metaq.logging_handler", "metaq.metaq1", "metaq.metaq1.aio",
    "metaq.metaq1.http", "metaq.metaq1.http.aio", "metaq.model", "metaq.options", "metaq.outbox", "metaq.spark", "metaq.spark.decode",
    "metaq.spark.pipelines", "metaq.testing", "metaq.testing.checking", "metaq.testing.nemesis", "metaq.testing.trial",
    "metaq.testing.workload", "metaq.xa",
)  # fmt: skip
LEAST = 900
"""Names that there are at least: a test of none would pass, too."""


def documented(thing: object) -> bool:
    return bool((inspect.getdoc(thing) or "").strip())


def members(found: type) -> Iterator[tuple[str, object]]:
    """The methods and properties that a class of ours defines itself."""
    if found.__module__.partition(".")[0] == "metaq":
        for name, value in vars(found).items():
            if not name.startswith("_") and (
                isinstance(value, (property, classmethod, staticmethod)) or inspect.isroutine(value)
            ):
                yield name, getattr(found, name)


def protocols(module: object) -> set[str]:
    """Names of methods that a protocol of this module describes, for all that implement it."""
    classes = [one for one in vars(module).values() if inspect.isclass(one) and getattr(one, "_is_protocol", False)]
    return {name for one in classes for name, value in members(one) if documented(value)}


def names(package: str) -> Iterator[tuple[str, bool]]:
    module = importlib.import_module(package)
    yield package, documented(module)
    described = protocols(module)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            yield f"{package}.{name}", documented(value)
            yield from (
                (f"{package}.{name}.{member}", member in described or documented(one)) for member, one in members(value)
            )
        elif inspect.isroutine(value):
            yield f"{package}.{name}", documented(value)


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_has_a_docstring(package):
    assert [name for name, is_documented in names(package) if not is_documented] == []


def test_there_are_many():
    assert sum(1 for package in PUBLIC for _ in names(package)) > LEAST
