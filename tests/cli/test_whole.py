"""What holds for every command: --json, examples that are right, completion of names, one way to end."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from metaq.cli.commands import all_commands
from metaq.cli.examples import EXAMPLES
from metaq.cli.servers.flags import SERVERS
from tests.support import run_metaq


def walk(command, path=()):
    """All groups and commands, with their paths."""
    yield " ".join(path), command
    for name, one in getattr(command, "commands", {}).items():
        yield from walk(one, (*path, name))


COMMANDS = dict(walk(all_commands()))
LEAVES = [
    path
    for path, command in COMMANDS.items()
    if not hasattr(command, "commands") and path not in {*SERVERS, "dashboard"}
]


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_speaks_json(path):
    """Servers excepted, whose first line is `ready`."""
    assert any("--json" in parameter.opts for parameter in COMMANDS[path].params)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_help_has_examples_that_are_right(path):
    """Each begins with the command, and has flags and arguments that there are."""
    assert EXAMPLES[path]
    for line in EXAMPLES[path]:
        words = shlex.split(re.sub(r" [<>] .*", "", line))
        assert words[: 1 + len(path.split())] == ["metaq", *path.split()]
        command, rest, at = COMMANDS[""], words[1:], ""
        while rest and hasattr(command, "commands") and rest[0] in command.commands:
            at = f"{at} {rest[0]}".strip()
            command = COMMANDS[at]
            rest.pop(0)
        for word in rest:
            if word.startswith("-") and not re.fullmatch(r"-\d+", word):
                assert any(word in [*one.opts, *one.secondary_opts] for one in command.params), (line, word)


def test_no_example_is_of_a_command_that_is_gone():
    assert EXAMPLES.keys() <= COMMANDS.keys()


def test_help_shows_the_examples():
    """Behind the options, as they are typed."""
    shown = run_metaq("topic", "create", "--help").stdout
    assert "Examples:\n  metaq topic create orders --queues 16\n" in shown


def test_a_summary_is_whole_where_there_is_room(monkeypatch):
    """At 80 columns those of `metaq --help`, which are for that; of its groups, on a wider terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    assert "...\n" not in run_metaq("--help").stdout.partition("\n")[2]
    monkeypatch.setenv("COLUMNS", "140")
    assert "...\n" not in run_metaq("group", "--help").stdout.partition("\n")[2]


@pytest.fixture
def complete(metaq_broker, monkeypatch):
    """What a shell offers for a line."""

    def offered(line):
        monkeypatch.setenv("_METAQ_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setenv("NAMESRV_ADDR", metaq_broker.namesrv)
        done = run_metaq()
        assert done.stderr == ""
        return done.stdout.split()

    return offered


def test_names_are_completed(complete, metaq_broker, tmp_path, monkeypatch):
    """Commands and options by themselves, topics and groups by asking the cluster."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    at = ("-n", metaq_broker.namesrv)
    for topic in ("cli-tab-one", "cli-tab-two"):
        assert run_metaq("topic", "create", topic, *at).returncode == 0
    assert run_metaq("send", "cli-tab-one", "x", *at).returncode == 0
    assert run_metaq("consume", "cli-tab-one", "--group", "cli-tab-group", "-c", "1", *at).returncode == 0
    assert run_metaq("group", "create", "cli-tab-new", *at).returncode == 0
    assert run_metaq("context", "add", "tab-here", *at).returncode == 0
    assert complete("metaq topi") == ["topic"]
    assert complete("metaq topic cr") == ["create"]
    assert complete("metaq context use tab-") == complete("metaq cluster --context tab-") == ["tab-here"]
    assert "--queues" in complete("metaq topic create --qu")
    assert complete("metaq consume cli-tab-") == ["cli-tab-one", "cli-tab-two"]
    assert complete("metaq topic show cli-tab-t") == ["cli-tab-two"]
    assert complete("metaq group show cli-tab-") == ["cli-tab-group", "cli-tab-new"]
    assert complete("metaq consume cli-tab-one --group cli-tab-g") == ["cli-tab-group"]


def test_a_cluster_that_is_away_completes_nothing(complete):
    """Without a word on the user's line."""
    assert complete("metaq consume -n 127.0.0.1:1 cli-") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell):
    assert "_METAQ_COMPLETE" in run_metaq("completion", shell).stdout
    assert json.loads(run_metaq("completion", shell, "--json").stdout)["shell"] == shell


def test_an_unknown_shell_is_one_sentence():
    done = run_metaq("completion", "tcsh")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "tcsh" in done.stderr


def test_no_colours_in_a_pipe(metaq_broker):
    """Tables and helps are plain there."""
    for words in (("cluster", "-n", metaq_broker.namesrv), ("--help",), ("topic", "nonsense")):
        done = run_metaq(*words)
        assert "\x1b" not in done.stdout + done.stderr
