"""Writes locks/: every package that MetaQ and its extras need, pinned, with the hashes of all files of its release; and parts of it.

    make lock

The pins hold for every Python from 3.11 on, and for every system: what differs has a marker. Needs uv.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import tomllib

from tools.install import EXTRAS, LOCKS

ROOT = pathlib.Path(__file__).parent.parent
HEAD = """\
# Written by `make lock`: every package that {what}, on every Python from 3.11 on, with the hashes of all its files.
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
        write("build", "builds MetaQ", compiled(builds, "--no-annotate"))
    source, whole = ROOT / "pyproject.toml", LOCKS / "all.txt"
    write("all", "MetaQ and its extras need", compiled(source, "--all-extras"))
    for name, extras in EXTRAS.items():
        flags = [text for extra in extras.split(",") for text in ("--extra", extra)]
        write(name, f"`pymetaq[{extras}]` needs", compiled(source, *flags, "--constraint", str(whole)))


def write(name: str, what: str, pins: str) -> None:
    (LOCKS / f"{name}.txt").write_text(HEAD.format(what=what) + pins, encoding="utf-8")


if __name__ == "__main__":
    main()
