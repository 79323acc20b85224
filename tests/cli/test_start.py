"""What a command imports before it does anything, and how command lines are read without typer and without pydantic."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from metaq.cli import commands
from metaq.cli.groups import App
from metaq.cli.servers import serve
from metaq.cli.servers.flags import SERVERS, flags_of, read_plain, words_of
from tests.support import PATIENCE, environment, run_metaq

_LOADED = """
import sys
from metaq.cli.main import main
sys.argv = ["metaq", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print(*sorted(sys.modules), file=sys.stderr)
"""


def loaded(*words: str) -> set[str]:
    """Modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *words],
        capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment(),
    )  # fmt: skip
    return set(done.stderr.splitlines()[-1].split())


HEAVY = {"rich", "pydantic", "asyncio", "metaq.client", "metaq.admin", "metaq.app", "metaq.store", "metaq.pipelines"}


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("topic", "--help"), ("send", "--help"), ("up", "--help")]
)
def test_help_loads_nothing_that_works(words):
    """What a help shows is in the command's own file: 30 ms instead of 300 (`metaq --help` takes 0.1 s of a core)."""
    assert not loaded(*words) & HEAVY


def test_help_of_everything_loads_no_command():
    """Their summaries are in one table."""
    mine = {name for name in loaded("--help") if name.startswith("metaq.cli.")}
    rooms = {lazy.module for lazy in commands.app.info.cls.table.values()}  # type: ignore[union-attr]
    assert not mine & rooms


def test_a_server_starts_without_typer():
    """Neither typer nor argparse nor rich stays in the memory of a server for as long as it runs."""
    assert not loaded("broker", "-n", "127.0.0.1:1", "-o", "fileReservedTime=7", "-p") & {
        "typer", "click", "argparse", "rich", "metaq.cli.commands",
    }  # fmt: skip


def test_send_loads_no_admin_and_no_server(metaq_broker):
    """What a send needs, and no more."""
    assert not loaded("send", "cli-start", "x", "-n", metaq_broker.namesrv) & {
        "rich", "pydantic", "metaq.app", "metaq.broker", "metaq.store", "metaq.spark", "metaq.admin",
    }  # fmt: skip


WORDS = st.sampled_from(
    ["-c", "-f", "--config", "-n", "--namesrv", "--host", "--port", "--namesrv-port", "--name", "--data", "-o", "-p", "-m",
     "--print-config", "--insecure", "--log-level", "--port=5", "--data=x", "--insecure=1", "--", "-", "a", "k=v", "7", "-7",
     "", "--help", "-ok=v", "-pm", "--hos", "status", "x y", "٣"]
)  # fmt: skip


@given(st.sampled_from(sorted(SERVERS)), st.lists(WORDS, max_size=6))
def test_plain_lines_mean_what_typer_says(server, words):
    """What is read without typer has the same values as with it; the rest is left to typer."""
    plain = read_plain(server, words)
    if plain is None:
        return
    taken: list[tuple[str, dict]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "main", lambda command, values: taken.append((command, dict(values))) or 0)
        patch.setattr(commands.signal, "signal", lambda *_: None)
        assert commands.run([server, *words]) == 0
    assert taken == [(server, plain)]


@given(st.sampled_from(sorted(SERVERS)), st.lists(WORDS, max_size=8))
def test_values_are_written_as_they_are_read(server, words):
    """What `metaq start` hands to the process of a server is what it was given."""
    plain = read_plain(server, words)
    if plain is not None:
        assert read_plain(server, words_of(server, plain)) == plain


def test_every_flag_is_read_plainly():
    """So that no start of a server with ordinary flags loads typer."""
    for server in SERVERS:
        for flag in flags_of(server):
            for text in flag.texts:
                value = {bool: [], int: ["7"]}.get(flag.kind, ["x"])
                read = read_plain(server, [text, *value])
                assert read is not None
                assert read[flag.name] == {bool: True, int: 7, list: ["x"]}.get(flag.kind, "x")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("topic", "creat", "x"), "Did you mean 'create'?"),
        (("send",), "Missing argument 'TOPIC'"),
        (
            ("consume", "t", "--group"),
            "metaq consume: Option '--group' requires an argument; see `metaq consume --help`",
        ),
        (("send", "t", "b", "--delay-level", "19"), "less than or equal to 18"),
        (("broker", "--port", "x"), "valid integer"),
        (("broker", "-n", "a:1", "status", "b"), "options go behind the command"),
        (("namesrv", "--log-level", "loud"), "loud"),
        (("up", "--nonsense"), "No such option"),
    ],
)
def test_wrong_usage_is_one_sentence(words, says):
    """On standard error, exit code 2, with the command that shows more."""
    done = run_metaq(*words)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_values_that_are_read_quickly_are_those_of_typer():
    """Texts, numbers within limits and lists; a wrong value gets typer's own refusal."""
    app, seen = App("of numbers"), []

    @app.command("one")
    def one(
        number: int = 3, part: float = 0.5, names: list[str] | None = None, low: int = typer.Option(1, min=1)
    ) -> None:
        seen.append((number, part, names, low))

    command = typer.main.get_command(app)
    command.main(["--number", "007", "--part", "2", "--names", "a", "--names", ""], standalone_mode=False)
    command.main(["--number", "-4", "--part", "1e3", "--low", "9"], standalone_mode=False)
    assert seen == [(7, 2.0, ["a", ""], 1), (-4, 1000.0, None, 9)]
    for wrong in (["--number", "x"], ["--low", "0"], ["--part", "."]):
        with pytest.raises(commands.UsageError):
            command.main(wrong, standalone_mode=False)
