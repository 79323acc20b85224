"""Pages for contributors name what is there: files, functions, make targets, commands, headings. The records of decisions have their parts,
and the forms of issues are forms."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re
import shlex
from collections.abc import Iterator

import pytest
import yaml

from metaq.cli.commands import all_commands
from tests.support import ROOT

SOURCES = ROOT / "src" / "metaq"
DECISIONS = ROOT / "docs" / "decisions"
RECORDS = sorted(DECISIONS.glob("[0-9]*.md"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
TEXTS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "SECURITY.md",
    ROOT / ".github" / "pull_request_template.md",
    DECISIONS / "README.md",
    *RECORDS,
    *FORMS,
]
PARTS = ["Context", "Decision", "What was measured or seen", "Consequences", "Revisit when"]

MADE = (".venv", ".cache")
"""What make puts into a clone."""
OF_STORES = {"config/metaq*.json"}
"""In a store's folder."""
PLACEHOLDER = re.compile(
    r"(?<![A-Za-z])(?<![A-Z]_)(?!README|CONTRIBUTING|CHANGELOG|SECURITY|CODE_OF_CONDUCT)[A-Z]{3,}(?![a-z])"
)
"""`tests/ROOM`, `docs/NAME.md`."""
IS_PATH = re.compile(r"[\w.*-]*/[\w./*-]*|[\w-]+\.(?:py|md|toml|txt|json|yml|svg)")
IN_FILE = re.compile(r"([\w./-]+\.py)::([\w.]+)")


def spans(text: str) -> list[str]:
    """What stands between backticks, code blocks left out."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def code(text: str) -> list[str]:
    """The same, and the lines of code blocks without their comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return spans(text) + [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def place(path: str) -> pathlib.Path | None:
    """The file or folder of this path: in the project, or below src/metaq."""
    for root in (ROOT, SOURCES):
        found = [root / path] if "*" not in path else [*root.glob(path)]
        if found and found[0].exists():
            return found[0]
    return None


def defines(tree: ast.AST, name: str) -> bool:
    """Whether a module has this function, class or value, or `Class.name`."""
    head, _, rest = name.partition(".")
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == head:
            return not rest or defines(node, rest)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not rest and any(isinstance(one, ast.Name) and one.id == head for one in targets):
                return True
    return False


@functools.cache
def texts_of_sources() -> list[str]:
    return [path.read_text() for path in SOURCES.rglob("*.py")]


@functools.cache
def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def member_is_there(name: str) -> bool:
    """`Class.member`, in whichever module of ours."""
    owner, _, member = name.partition(".")
    return any(
        re.search(rf"^class {owner}\b", text, re.MULTILINE) and re.search(rf"\b(def )?{member}\b *[(:=]", text)
        for text in texts_of_sources()
    )


def importable(name: str) -> bool:
    """A module of ours, compiled or not, or a public name of one."""
    path = ROOT / "src" / name.replace(".", "/")
    if path.is_dir() or any(path.with_name(path.name + suffix).exists() for suffix in (".py", ".pyx")):
        return True
    module, _, attribute = name.rpartition(".")
    return importable(module) and hasattr(importlib.import_module(module), attribute)


def runs(line: str) -> bool:
    """Whether `python -m MODULE` names something that runs."""
    module = re.search(r"\bpython -m ([\w.]+)", line)
    if module is None or module[1] == "pytest":
        return True
    path = module[1].replace(".", "/")
    return any((root / end).is_file() for root in (ROOT, ROOT / "src") for end in (f"{path}.py", f"{path}/__main__.py"))


def is_command(line: str) -> bool:
    """Whether `metaq ...` is a command with its flags."""
    command = all_commands()
    words = [word for word in shlex.split(line)[1:] if not PLACEHOLDER.fullmatch(word)]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if words and not words[0].startswith("-") and hasattr(command, "commands"):
        return False
    flags = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)} | {"--help"}
    return all(word in flags for word in words if word.startswith("-"))


def wrong_in(text: str) -> Iterator[str]:
    """What a page names and is not there."""
    for span in spans(text):
        if found := IN_FILE.fullmatch(span):
            file = place(found[1])
            if file is None or not defines(ast.parse(file.read_text()), found[2]):
                yield span
        elif IS_PATH.fullmatch(span):
            is_ours = not span.startswith(MADE) and span not in OF_STORES and not PLACEHOLDER.search(span)
            if is_ours and place(span) is None:
                yield span
        elif re.fullmatch(r"metaq(\.\w+)+", span):
            if not importable(span):
                yield span
        elif span.startswith("hot."):
            if not re.search(
                rf"^(def|class) {span.removeprefix('hot.')}\b",
                (SOURCES / "wire/hot/__init__.pyi").read_text(),
                re.MULTILINE,
            ):
                yield span
        elif re.fullmatch(r"[A-Z]\w+\.\w+", span) and not member_is_there(span):
            yield span
    for line in code(text):
        for target in re.findall(r"\bmake ([a-z-]+)", line if line.startswith(("make", "METAQ_")) else ""):
            if target not in targets():
                yield line
        if not runs(line) or (line.startswith("metaq ") and not is_command(line)):
            yield line


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_what_a_page_names_is_there(path):
    assert [*wrong_in(path.read_text())] == []


@pytest.mark.parametrize(
    "wrong",
    [
        "`broker/nothing.py`", "`tests/none/`", "`src/*/none.py`", "`broker/send.py::SendService.nothing`", "`broker/send.py::nothing`",
        "`Appender.nothing_there`", "`metaq.nothing`", "`metaq.clock.Nothing`", "`hot.nothing`", "`make nothing`", "`python -m tools.nothing`",
        "`metaq nothing`", "`metaq doctor --nothing`", "```\nmake nothing ARGS=1   # a comment\n```", "`METAQ_REPEATS=all make nothing`",
    ],
)  # fmt: skip
def test_what_is_not_there_is_found(wrong):
    assert len([*wrong_in(f"A sentence.\n\n{wrong}\n")]) == 1


def slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


@pytest.mark.parametrize("path", [path for path in TEXTS if path.suffix == ".md"], ids=lambda path: path.name)
def test_a_link_leads_to_a_heading_that_is_there(path):
    """That the page is there is asked in test_formats.py."""
    for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text()):
        page = path.parent / target if target else path
        assert heading in {slug(title) for title in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}, target


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_its_number_its_parts_and_its_row(path):
    text, number = path.read_text(), RECORDS.index(path) + 1
    title = re.match(rf"# {number}\. (.+)\n", text)
    assert title
    assert path.name.startswith(f"{number:04}-")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS
    assert 30 <= len(text.splitlines()) <= 70
    row = re.search(
        rf"^\| \[{number}\]\({re.escape(path.name)}\) \| (.+) \|$", (DECISIONS / "README.md").read_text(), re.MULTILINE
    )
    assert row
    assert row[1] == title[1]


FIELDS = {
    "markdown": {"value"},
    "input": {"label"},
    "textarea": {"label"},
    "dropdown": {"label", "options"},
    "checkboxes": {"label", "options"},
}
"""Kinds of fields of a form, and what each has to have."""


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_a_form(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    fields = form["body"]
    assert any(field["type"] != "markdown" for field in fields)
    for field in fields:
        assert FIELDS[field["type"]] <= field["attributes"].keys()
        assert field["type"] == "markdown" or re.fullmatch(r"[\w-]+", field["id"])
        assert field.keys() <= {"type", "id", "attributes", "validations"}
    ids = [field["id"] for field in fields if "id" in field]
    labels = [field["attributes"]["label"] for field in fields if "label" in field["attributes"]]
    assert len(set(ids)) == len(ids)
    assert len(set(labels)) == len(labels)
    for field in fields:
        options = field["attributes"].get("options", [])
        assert len({str(one) for one in options}) == len(options)
        assert field["type"] != "checkboxes" or all(one["label"] for one in options)


def test_a_bug_is_told_with_what_is_needed_to_find_it():
    assert {path.stem for path in FORMS} == {"bug", "feature", "question"}
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    ids = {field.get("id") for field in form["body"]}
    assert ids >= {"version", "doctor", "client", "broker", "store", "steps", "log"}
    assert yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text()) == {
        "blank_issues_enabled": False
    }
