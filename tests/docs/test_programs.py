"""Every page with a program in Python has a test that takes the program from the page.

Whether a test runs what it takes is for its reader to see. The programs of all pages are parsed here, and import what is there.
"""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
import textwrap

import pytest

from tests.ci.test_opened import tracked
from tests.support import ROOT
from tests.test_public_names import PUBLIC

BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PAGES = {
    path: text
    for path in sorted(tracked())
    if path.endswith(".md") and path.startswith(("docs/", "README", "bench/", "examples/", "CHANGELOG"))
    if "```python" in (text := (ROOT / path).read_text())
}
HELD = {"README.zh-CN.md": "its programs are those of README.md: tests/docs/test_readme.py"}
"""Pages whose programs another page's test runs."""


def programs(text: str) -> list[str]:
    return [textwrap.dedent(found[2]) for found in BLOCK.finditer(text)]


def takes(test: str, page: str) -> bool:
    """Whether a test reads this page, and takes programs of Python from pages."""
    folder, _, name = page.rpartition("/")
    named = rf'"{re.escape(page)}"' + (rf'|"{folder}"\s*/\s*"{re.escape(name)}"' if folder else "")
    if 'f"{name}.md"' in test:
        named += rf'|"{re.escape(name.removesuffix(".md"))}"'
    return bool(re.search(named, test)) and ("```python" in test or '"python"' in test)


def test_every_page_with_a_program_has_a_test_that_takes_it():
    tests = [
        (ROOT / path).read_text()
        for path in tracked()
        if re.fullmatch(r"tests/.*/test_\w+\.py|tests/test_\w+\.py", path)
        and (ROOT / path).name != pathlib.Path(__file__).name
    ]
    untaken = {page for page in PAGES if not any(takes(test, page) for test in tests)}
    assert len(PAGES) > 30
    assert untaken == set(HELD)


@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page_are_python_and_import_what_is_there(page: str):
    blocks = programs(PAGES[page])
    assert len(blocks) == PAGES[page].count("```python")
    missing = []
    for block in blocks:
        tree = compile(block, page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "metaq":
                module = importlib.import_module(node.module or "")
                missing += [f"{node.module}.{one.name}" for one in node.names if not hasattr(module, one.name)]
            elif isinstance(node, ast.Import):
                for one in node.names:
                    if one.name.partition(".")[0] == "metaq":
                        importlib.import_module(one.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "metaq":
                missing += [] if hasattr(importlib.import_module("metaq"), node.attr) else [f"metaq.{node.attr}"]
    assert missing == []


INSIDE = {
    "docs/dashboard.md": "its program adds a page to the dashboard's source",
    "docs/spark-cluster.md": "its program asks whether the native module is there",
}
"""Pages whose programs import what is not public."""


def test_programs_and_examples_import_public_names_only():
    """What users copy must stay where it is."""
    texts = {page: programs(text) for page, text in PAGES.items()}
    texts |= {path: [(ROOT / path).read_text()] for path in tracked() if re.fullmatch(r"examples/.*\.py", path)}
    inside: dict[str, set[str]] = {}
    for path, blocks in texts.items():
        for block in blocks:
            tree = compile(block, path, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    found = {node.module or ""}
                elif isinstance(node, ast.Import):
                    found = {one.name for one in node.names}
                else:
                    continue
                if hidden := {one for one in found if one.partition(".")[0] == "metaq" and one not in PUBLIC}:
                    inside.setdefault(path, set()).update(hidden)
    assert {path: names for path, names in inside.items() if path not in INSIDE} == {}
    assert INSIDE.keys() <= inside.keys()
