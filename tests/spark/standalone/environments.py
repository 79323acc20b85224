"""Pythons for a cluster's machines: all that Spark needs, but MetaQ only where a test puts it."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

_OURS = "metaq", "pymetaq", "pyspark_metaq", "__editable__"


def without_metaq(folder: Path) -> Path:
    """A virtual environment with all that ours has installed except MetaQ: its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(_OURS):
            (packages(folder) / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def packages(folder: Path) -> Path:
    """Where an environment has its packages."""
    return next((folder / "lib").glob("python*/site-packages"))
