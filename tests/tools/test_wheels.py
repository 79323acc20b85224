"""Wheels: which Pythons and headers there are, and that headers of another machine would not be used."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tools.wheels import TARGETS, Failed, headers_in, size_checks, stage_headers, versions

from tests.support import PATIENCE

CONFIG = Path(sysconfig.get_config_h_filename())
THIS = sysconfig.get_python_version()
needs_headers = pytest.mark.skipif(not CONFIG.exists(), reason="this Python has no headers")


def test_the_pythons_are_those_that_the_package_names():
    assert versions() == ["3.11", "3.12", "3.13", "3.14"]
    assert {one.platform.rpartition("_x86_64")[0] or one.platform.rpartition("_aarch64")[0] for one in TARGETS} == {
        "manylinux_2_17", "musllinux_1_2",
    }  # fmt: skip


@needs_headers
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_sizes_of_headers_are_compared_with_the_compilers(tmp_path):
    """This machine's own headers fit; with one size wrong they do not, and the compiler says which."""
    text = CONFIG.read_text()
    if "SIZEOF_LONG" not in text:  # Debian's dispatches to that of the architecture
        text = headers_in(CONFIG.parent)[1].read_text()

    def compiles(config):
        (tmp_path / "sizes.c").write_text(size_checks(config))
        command = ["cc", "-c", "sizes.c", "-o", "sizes.o"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert compiles(text).returncode == 0, compiles(text).stderr
    assert size_checks(text).count("_Static_assert") > 15
    wrong = compiles(text.replace("#define SIZEOF_LONG 8", "#define SIZEOF_LONG 4"))
    assert wrong.returncode != 0
    assert "SIZEOF_LONG" in wrong.stderr
    with pytest.raises(Failed, match="SIZEOF_NOVELTY"):
        size_checks("#define SIZEOF_NOVELTY 8\n")


@needs_headers
def test_headers_are_those_of_the_version_that_is_asked_for(tmp_path):
    """Named, they are looked at; of another version, or of a free-threaded Python, they are refused."""
    assert stage_headers(THIS, None, tmp_path / "found")
    assert (tmp_path / "found" / "Python.h").exists()
    assert "SIZEOF_LONG" in (tmp_path / "found" / "pyconfig.h").read_text()
    assert stage_headers(THIS, tmp_path / "found", tmp_path / "given")
    with pytest.raises(Failed, match=r"ordinary Python 3\.99"):
        stage_headers("3.99", tmp_path / "found", tmp_path / "other")
    assert not stage_headers("3.99", None, tmp_path / "other")
    with (tmp_path / "found" / "pyconfig.h").open("a") as config:
        config.write("#define Py_GIL_DISABLED 1\n")
    with pytest.raises(Failed, match="ordinary"):
        stage_headers(THIS, tmp_path / "found", tmp_path / "threaded")
    with pytest.raises(Failed, match=r"no Python\.h"):
        stage_headers(THIS, tmp_path, tmp_path / "none")
