"""`metaq meta1 tx` against a broker that was started from a server.ini, as an operator types it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

from metaq.cli import commands
from metaq.testing import free_port
from tests.interop.metaq1 import OurServer, TextConnection

Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    with OurServer(tmp_path_factory.mktemp("tx"), None, {"test": {}}) as running:
        yield running


@pytest.fixture(scope="module")
def cli(server: OurServer) -> Iterator[Run]:
    """cli("list") runs `metaq meta1 tx list` in this process; nobody answers at the name servers' address."""

    def run(*args: str, broker: str | None = None) -> CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            words = ["meta1", "tx", *args, "--broker", broker or server.broker, "-n", f"127.0.0.1:{free_port()}"]
            code = commands.run(words)
        return CompletedProcess(args, code, out.getvalue(), err.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands.signal, "signal", lambda *_: None)  # type: ignore[attr-defined]
        yield run


@pytest.fixture
def text(server: OurServer) -> Iterator[TextConnection]:
    with TextConnection(server.text) as connection:
        yield connection


def ask(text: TextConnection, line: str, body: bytes = b"") -> tuple[int | None, str]:
    answer = text.ask(line, body)
    assert answer is not None
    return answer.code, answer.text


def prepare(text: TextConnection, key: str) -> None:
    assert ask(text, f"transaction {key} s BEGIN 1")[0] == 200
    assert ask(text, f"put test 0 5 0 {key} 2", b"hello")[0] == 200
    assert ask(text, f"transaction {key} s PREPARE 3") == (200, "0")


@pytest.mark.parametrize(("action", "code", "said"), [("commit", 7, "committed"), ("rollback", 6, "rolled back")])
def test_an_operator_lists_ends_and_forgets_a_branch_whose_manager_is_lost(
    cli: Run, text: TextConnection, action: str, code: int, said: str
) -> None:
    key = f"XID:7:6731:6231:{action}"
    prepare(text, key)
    listed = json.loads(cli("list", "--json").stdout)["transactions"]
    (one,) = [shown for shown in listed if shown["key"] == key]
    assert (one["phase"], one["messages"]) == ("prepared", 1)
    done = cli(action, key, "--yes")
    assert (done.returncode, f"{key} is {said}" in done.stdout) == (0, True)
    assert f"{said} by hand" in cli("list").stdout
    told = ask(text, f"transaction {key} s COMMIT_TWO_PHASE 4")
    assert told == (500, f"XAException:code={code},msg=XA transaction '{key}' was {said} by hand.")
    assert cli(action, key, "--yes").returncode == 1, "it has been done"
    assert cli("forget", key, "--yes", "--json").returncode == 0
    assert key not in cli("list").stdout
    assert ask(text, f"transaction null s RECOVER {action} 5") == (200, "")


def test_open_transactions_are_listed_with_their_client_and_cannot_be_ended_by_hand(
    cli: Run, text: TextConnection
) -> None:
    ask(text, "transaction TX:s:1 s BEGIN 1")
    ask(text, "transaction XID:1:01::q s BEGIN 1")
    ask(text, "put test 0 5 0 TX:s:1 2", b"hello")
    shown = {one["key"]: one for one in json.loads(cli("list", "--json").stdout)["transactions"]}
    local = shown["TX:s:1"]
    assert (local["phase"], local["messages"]) == ("open", 1)
    assert local["client"].startswith("127.0.0.1:")
    refused = cli("commit", "XID:1:01::q", "--yes")
    assert (refused.returncode, "is prepared" in refused.stderr) == (1, True)


def test_what_nobody_has_is_not_found(cli: Run) -> None:
    missing = cli("commit", "XID:1:02::q", "--yes")
    assert (missing.returncode, "no broker has the transaction XID:1:02::q" in missing.stderr) == (3, True)
    gone = cli("list", broker=f"127.0.0.1:{free_port()}")
    assert gone.returncode == 0
    assert "could not be asked" in gone.stdout


@pytest.mark.parametrize("action", ["commit", "rollback", "forget"])
def test_nothing_is_asked_of_a_branch_that_does_not_exist(cli: Run, action: str) -> None:
    done = cli(action, "XID:7:6731:6231:nobody")
    assert (done.returncode, "[y/N]" in done.stderr) == (3, False), done.stderr
    assert "no broker has the transaction XID:7:6731:6231:nobody" in done.stderr
