"""The image: what it is built from is what a build needs, and what it runs is ours. No image is built here."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile

import pytest
from tools.install import EXTRAS

from metaq.testing import free_port
from tests.ci.test_opened import tracked
from tests.deploy.commands import checked, options, ready, refused, serving
from tests.deploy.tools import linted
from tests.support import ROOT, WHOLE_PATIENCE

FILE = ROOT / "deploy" / "container" / "Containerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPILED = {"metaq/net/_sweep", "metaq/store/log/_syncing", "metaq/wire/hot/_native"}


def instructions() -> list[tuple[str, str]]:
    """Instruction and its arguments, of all stages."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    return found[max(place for place, (word, _) in enumerate(found) if word == "FROM") :]


def only(word: str) -> str:
    (found,) = [rest for name, rest in last_stage() if name == word]
    return found


def context() -> set[str]:
    """Files of this tree that a build gets, by .dockerignore: the last pattern that matches a file or a folder above it counts."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    def taken(path: str) -> bool:
        above = [path, *(path[:place] for place, letter in enumerate(path) if letter == "/")]
        kept = True
        for line in lines:
            pattern = line.removeprefix("!")
            names = [name.rpartition("/")[2] for name in above] if pattern.startswith("**/") else above
            if any(fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in names):
                kept = line.startswith("!")
        return kept

    return {path for path in tracked() if taken(path)}


def test_hadolint_has_nothing_against_it():
    """One rule is off in one place: Debian's compiler has no version of its own worth naming."""
    assert linted(FILE) == ""


def test_a_linter_that_finds_nothing_has_looked(tmp_path):
    """It knows a fault when there is one."""
    wrong = tmp_path / "Containerfile"
    wrong.write_text("FROM debian\nRUN cd /tmp\n")
    assert {"DL3006", "DL3003"} <= set(re.findall(r"DL\d+", linted(wrong)))


def test_a_build_gets_what_it_needs_and_no_more():
    """Every source, and every file that a COPY names; no history, no tests, nothing that lies in the folder by chance."""
    given = context()
    wanted = {path for path in tracked() if path.startswith(("src/", "locks/"))}
    wanted |= {
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
    }
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    wanted |= {name.rstrip("/") for names in copied for name in names if name != "."}
    assert given >= wanted
    assert {path.split("/")[0] for path in given} == {
        "src",
        "locks",
        "deploy",
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
    }
    assert {path for path in given if path.startswith("deploy/")} == {
        "deploy/container/healthcheck.py",
        "deploy/container/hand_over.py",
    }


def test_the_image_ends_as_a_user_without_rights_or_compiler():
    """By number, as Kubernetes' runAsNonRoot wants; nothing is installed behind the last FROM."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", only("USER"))
    assert only("VOLUME") == only("WORKDIR") == "/data"
    assert only("STOPSIGNAL") == "SIGTERM"
    assert not [rest for word, rest in last_stage() if word == "RUN" and re.search(r"apt-get|pip|gcc", rest)]
    assert "venv --without-pip /opt/metaq" in FILE.read_text()
    places = [word for word, _ in last_stage()]
    assert places.index("RUN") < places.index("USER") < places.index("VOLUME")


def test_base_images_are_of_a_minor_version_that_we_support():
    """Both stages the same: the environment is moved from one to the other."""
    (base,) = {rest.split()[0] for word, rest in instructions() if word == "FROM"}
    python = re.fullmatch(r"docker\.io/library/python:(3\.\d+)-slim-\w+", base)[1]
    assert f"Programming Language :: Python :: {python}" in PROJECT["project"]["classifiers"]


def test_the_image_has_the_release_of_this_tree():
    """Its label, and the tags in deploy/."""
    assert only("ARG") == f"VERSION={PROJECT['project']['version']}"
    for path in [*ROOT.glob("deploy/compose/*"), FILE]:
        assert set(re.findall(r"metaq:(\d[\w.]*)", path.read_text())) == {PROJECT["project"]["version"]}
    chart = (ROOT / "deploy/helm/metaq/Chart.yaml").read_text()
    assert re.search(r'^appVersion: "(.*)"', chart, re.MULTILINE)[1] == PROJECT["project"]["version"]


def test_what_the_image_installs_is_pinned_with_hashes():
    """locks/container.txt is of these extras, `make lock` writes it."""
    installs = [rest for word, rest in instructions() if word == "RUN" and "pip" in rest]
    for line in re.split(r"&&|;", " ".join(installs)):
        if "install" in line and "pip" in line:
            assert "--require-hashes" in line or "--no-index" in line, line
    assert f"pymetaq[{EXTRAS['container']}]" in (ROOT / "locks" / "container.txt").read_text().splitlines()[0]


def test_its_command_is_one_of_ours(tmp_path):
    """And nobody outside of the container reaches what it starts by default: consent is the user's."""
    assert json.loads(only("ENTRYPOINT")) == ["metaq"]
    words = json.loads(only("CMD"))
    assert refused(words) == ""
    assert "--insecure" not in words
    assert "--host" not in words
    assert options(words)["httpPort"] in re.findall(r"\d+", only("EXPOSE"))


def test_its_health_check_says_when_a_server_serves(tmp_path):
    """The same program, against a server that is not there, and one that is."""
    command = re.search(r"CMD (\[.*\])", only("HEALTHCHECK"))[1]
    assert json.loads(command) == ["/opt/metaq/bin/python", "/opt/metaq/healthcheck.py"]
    folder = shlex.split(next(rest for word, rest in last_stage() if word == "COPY" and "healthcheck.py" in rest))[-1]
    assert folder == "/opt/metaq/"
    gone = checked("127.0.0.1", 9)
    assert (gone.returncode, "httpPort=9" in gone.stdout) == (1, True)
    port = free_port()
    words = ["namesrv", "--data", "/data", "--host", "127.0.0.1", "--port", "0", "-o", f"httpPort={port}"]
    with serving(words, "127.0.0.1", tmp_path, {}) as child:
        ready(child)
        for kind in ("ready", "live"):
            assert checked("127.0.0.1", port, kind).returncode == 0
        assert checked("127.0.0.1", port, "nonsense").returncode == 1


@pytest.mark.all
def test_a_build_from_that_context_has_the_compiled_modules(tmp_path):
    """The command of the build stage, on what .dockerignore leaves: the wheel is whole. Needs a compiler."""
    for path in context():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes((ROOT / path).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        ".",
    ]
    done = subprocess.run(
        command, cwd=tmp_path / "source", capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name.partition(".")[0] for name in archive.namelist() if name.endswith(".so")}
        assert found == COMPILED
        packed = {name for name in archive.namelist() if name.endswith(".py") and name.startswith("metaq/")}
    assert packed == {
        path.removeprefix("src/") for path in tracked() if path.startswith("src/metaq/") and path.endswith(".py")
    }
