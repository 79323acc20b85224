"""`metaq xa`: what is not over in a coordinator's folder, and how one transaction is retried or dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metaq.cli.commands import run
from metaq.xa import Coordinator
from metaq.xa.decisions import look
from tests.xa.files import Files

RESOURCES = """
import contextlib
from pathlib import Path
from tests.xa.files import Files

def resources():
    return [Files(Path(name), Path(name).name) for name in {folders!r}]

@contextlib.contextmanager
def opened():
    yield resources()

def broken():
    made = resources()
    made[1].away = True
    return made
"""


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A transaction that is committed on the left, and waits for the right; the id. Its program has ended."""
    left, right = Files(tmp_path / "left", "left"), Files(tmp_path / "right", "right")
    with Coordinator(tmp_path / "log", [left, right]) as coordinator:
        coordinator.recover()
        tx = coordinator.transaction()
        for files in (left, right):
            tx.enlist(files).append("a")
        tx.prepare()
        right.away = True
        assert tx.commit().pending == ("right: right is away",)
    monkeypatch.chdir(tmp_path)
    folders = [str(tmp_path / "left"), str(tmp_path / "right")]
    Path("shop_resources.py").write_text(RESOURCES.format(folders=folders))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "shop_resources", raising=False)
    return tx.id


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    assert run(["xa", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_list(waiting: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Id, decision, time, branches, and what stands in the way; of a folder that is in use as well."""
    with Coordinator("log", []):
        [one] = shown(capsys, "list", "log")["transactions"]
    assert (one["transaction"], one["committed"], one["in_the_way"]) == (waiting, True, ["right: right is away"])
    assert [branch["resource"] for branch in one["branches"]] == ["left", "right"]
    assert one["since"].endswith("Z")
    assert run(["xa", "list", "log"]) == 0
    said = capsys.readouterr().out
    assert f"{waiting}: decided to be committed, since {one['since']}" in said
    assert f"branch {one['branches'][1]['branch']} at right" in said
    assert "not finished because: right: right is away" in said
    assert run(["xa", "list", "."]) == 2
    assert "no folder of a coordinator" in capsys.readouterr().err


def test_retry(waiting: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Still away, then not."""
    done = shown(capsys, "retry", "log", waiting, "--resources", "shop_resources:broken", "--yes", code=1)
    assert (done["over"], len(done["pending"])) == (False, 2)  # the list of its branches, and the branch
    assert "right is away" in look(Path("log"))[1][waiting].reasons[0]
    assert run(["xa", "retry", "log", waiting, "--resources", "shop_resources:opened", "--yes"]) == 0
    assert capsys.readouterr().out == f"{waiting} is finished: committed\n"
    assert Path("right/a").exists()
    assert shown(capsys, "list", "log")["transactions"] == []
    assert run(["xa", "retry", "log", waiting, "--resources", "shop_resources:opened"]) == 3


def test_only_one_is_retried(waiting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [Files(tmp_path / name, name) for name in ("left", "right")]
    with Coordinator(tmp_path / "log", files) as coordinator:
        coordinator.recover(only="another")
        assert coordinator.open == (waiting,)
        assert files[1].prepared == 1


def test_drop(
    waiting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a question that says what it means; the next recovery rolls back what is still prepared."""
    monkeypatch.setattr("sys.stdin", __import__("io").StringIO("n\n"))
    assert run(["xa", "drop", "log", waiting]) == 1
    said = capsys.readouterr().err
    assert "will be rolled back by the next recovery" in said
    assert "at right" in said
    assert shown(capsys, "drop", "log", waiting, "--yes")["dropped"]["transaction"] == waiting
    assert run(["xa", "drop", "log", waiting, "--yes"]) == 3
    assert shown(capsys, "list", "log")["transactions"] == []
    files = [Files(tmp_path / name, name) for name in ("left", "right")]
    with Coordinator(tmp_path / "log", files) as coordinator:
        assert coordinator.recover().rolled_back == (waiting,)
    assert (files[0].names, files[1].names, files[1].prepared) == (["a"], [], 0)


@pytest.mark.parametrize("text", ["shop_resources", "no_such_module:x", "shop_resources:nothing"])
def test_resources_that_cannot_be_used(waiting: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["xa", "retry", "log", waiting, "--resources", text, "--yes"]) == 2
    assert f"--resources {text}" in capsys.readouterr().err


def test_a_folder_in_use_is_neither_retried_nor_dropped(waiting: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Coordinator("log", []):
        assert run(["xa", "drop", "log", waiting, "--yes"]) == 1
        assert "is in use" in capsys.readouterr().err
