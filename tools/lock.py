"""Writes locks/: every package that MetaQ and its extras need, pinned, with the hashes of all files of its release.

    make lock

The pins hold for every Python from 3.11 on, and for every system: what differs has a marker. Needs uv.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).parent.parent
HEAD = """\
# Written by `make lock`: every package that MetaQ and its extras need, on every Python from 3.11 on, with the hashes of all its files.
# `make LOCKED=1 …` installs these and nothing else; `make verify-locked` shows that they are there, whole, and enough.
"""


def compiled(source: pathlib.Path, *more: str) -> str:
    """Return the pins of what a file asks for."""
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--python-version", "3.11", "--no-header", *more,
    ]  # fmt: skip
    return subprocess.run([*command, str(source)], capture_output=True, text=True, check=True, cwd=ROOT).stdout  # noqa: S603  our own program


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        builds = pathlib.Path(folder) / "build.in"
        builds.write_text("\n".join(project["build-system"]["requires"]))
        (ROOT / "locks/build.txt").write_text(HEAD + compiled(builds, "--no-annotate"), encoding="utf-8")
    (ROOT / "locks/all.txt").write_text(HEAD + compiled(ROOT / "pyproject.toml", "--all-extras"), encoding="utf-8")


if __name__ == "__main__":
    main()
