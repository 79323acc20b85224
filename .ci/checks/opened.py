"""What a step's processes opened, held against its inputs: an input that is not declared is a fault.

A step is passed over while its inputs are the same. Were one of them missing in its list, a change of it would pass unseen.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
import re
from collections.abc import Iterable, Mapping

RECORDER = ".ci/checks/record"


def environment(root: pathlib.Path, out: pathlib.Path, before: Mapping[str, str]) -> dict[str, str]:
    """The variables that make every Python below a step record what it opens into the file `out`."""
    paths = [str(root / RECORDER), *filter(None, [before.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "CI_OPENED": str(out), "CI_ROOT": str(root)}


def source_of(path: str) -> str:
    """The file in git that an opened one was made of: bytecode of its source, a compiled module of its Cython."""
    if found := re.fullmatch(r"(.*?)__pycache__/([^/]+?)\.[\w-]+(\.opt-\d|-pytest-[\d.]+)?\.pyc(\.\d+)?", path):
        return f"{found[1]}{found[2]}.py"
    if found := re.fullmatch(r"(.*/)?(\w+)\.[\w-]+\.so", path):
        return f"{found[1] or ''}{found[2]}.pyx"
    return path


def recorded(out: pathlib.Path) -> set[str]:
    """The files, as paths in git, that the file of a recording names. Empty: nothing was recorded."""
    try:
        lines = out.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return set()
    return {source_of(line) for line in lines if line}


def undeclared(opened: Iterable[str], declared: Iterable[str], files: Iterable[str]) -> list[str]:
    """The files of the project among the opened ones that the inputs do not name, in order."""
    return sorted((set(opened) & set(files)) - set(declared))


def in_short(paths: Iterable[str], most: int = 6) -> str:
    """Some paths for a line of the summary: by folder where there are many."""
    names = list(paths)
    if len(names) <= most:
        return ", ".join(names)
    folders: dict[str, int] = {}
    for name in names:
        folder = posixpath.dirname(name)
        folders[folder] = folders.get(folder, 0) + 1
    return ", ".join(f"{folder} ({count})" for folder, count in folders.items())
