"""`metaq send` from files and lines, at a rate, with progress; `metaq consume` by offsets, queues and formats."""

from __future__ import annotations

import io
import json

import pytest
import typer

from metaq.cli.messages.formats import LETTERS, formatter
from metaq.cli.messages.pace import Pace, Progress
from metaq.cli.messages.places import Place, end_place, start_place
from tests.support import run_metaq


@pytest.fixture(scope="module")
def cli(metaq_broker):
    def run(*args, **options):
        return run_metaq(*args, "-n", metaq_broker.namesrv, **options)

    return run


@pytest.fixture(scope="module")
def ten(cli):
    """A topic with one queue and the messages 0 to 9, keys k0 to k9."""
    assert cli("topic", "create", "cli-ten", "--queues", "1").returncode == 0
    sent = cli(
        "send", "cli-ten", "--lines", "-K", "=", "--property", "a=b", stdin="".join(f"k{n}={n}\n" for n in range(10))
    )
    assert sent.stdout == "10 messages are stored in topic cli-ten\n", sent.stderr
    return "cli-ten"


def test_files_and_lines_of_files_are_sent(cli, tmp_path):
    """A file is a message, bytes as they are; with --lines each of its lines; --count repeats or ends."""
    assert cli("topic", "create", "cli-files", "--queues", "1").returncode == 0
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb\n\xff")
    two.write_text("c\n\nd\ne\n")
    assert cli("send", "cli-files", "-F", str(one)).stdout.startswith("SEND_OK")
    assert cli("send", "cli-files", "-F", str(one), "-F", str(two), "-c", "2").stdout.startswith(
        "4 messages are stored"
    )
    assert len(cli("send", "cli-files", "--lines", "-F", str(two), "-c", "2", "--json").stdout.splitlines()) == 2
    bodies = [json.loads(line) for line in cli("consume", "cli-files", "--json").stdout.splitlines()]
    texts = [one.get("body") for one in bodies]
    assert texts == [None, None, "c\n\nd\ne\n", None, "c\n\nd\ne\n", "c", "d"]
    assert bodies[0]["body_base64"] == "YQpiCv8="


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("x", "body", "--lines"), "leave BODY out"),
        (("x", "-F", "/no/such"), "/no/such cannot be read: No such file"),
        (("x", "body", "-K", "="), "needs --lines"),
        (("x", "body", "--rate", "0"), "greater than or equal"),
        (("x", "body", "--count", "0"), "greater than or equal"),
        (("x", "body", "--property", "novalue"), "is not NAME=VALUE"),
    ],
)
def test_wrong_sends_are_one_sentence(cli, words, says):
    done = cli("send", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_a_failed_run_says_how_many_are_stored(cli):
    """The second of three lines is more than a broker takes."""
    done = cli("send", "cli-partly", "--lines", stdin=f"one\n{'x' * (5 << 20)}\nthree\n")
    assert done.returncode != 0
    assert "1 messages are stored" in done.stderr or "2 messages are stored" in done.stderr
    assert "Traceback" not in done.stderr


class FakeTime:
    """Time that goes on when somebody waits."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


def test_a_rate_is_kept_evenly():
    """Ten messages at four a second take nine quarters; late ones are made up for; what is in flight is taken before a wait."""
    time, idle = FakeTime(), []
    pace = Pace(4, time, time.wait)
    for _ in range(10):
        pace.before_next(lambda: idle.append(time.now))
    assert time.now == pytest.approx(102.25)
    assert len(idle) == 9
    time.now += 10
    for _ in range(40):
        pace.before_next()
    assert time.now == pytest.approx(112.25)


def test_progress_is_for_terminals_only():
    """One line, written again; taken away at the end."""
    time = FakeTime()
    out = io.StringIO()
    shown = Progress(10, "are stored", out, time)
    time.now += 1
    shown.show(5)
    assert out.getvalue() == ""
    out.isatty = lambda: True
    shown = Progress(10, "are stored", out, time)
    for done in range(1, 11):
        time.now += 0.25
        shown.show(done)
    shown.end()
    assert out.getvalue().count("\r") == 10 + 2
    assert "10 of 10 (100%) messages are stored, 4/s" in out.getvalue()


@pytest.mark.parametrize(
    ("words", "bodies"),
    [
        (("-o", "7"), "789"),
        (("-o", "-2"), "89"),
        (("-o", "-200"), "0123456789"),
        (("-o", "beginning", "--to", "3"), "012"),
        (("--from", "4", "--to", "6"), "45"),
        (("-o", "99"), ""),
        (("-o", "end"), ""),
        (("--to", "2000-01-01"), ""),
        (("--from", "2000-01-01", "--to", "2099-01-01", "-c", "3"), "012"),
        (("-p", "0", "-o", "-1"), "9"),
    ],
)
def test_reading_begins_and_ends_where_it_is_told(cli, ten, words, bodies):
    got = cli("consume", ten, *words)
    assert (got.returncode, got.stdout.split()) == (0, list(bodies)), got.stderr


def test_headers_keys_and_formats(cli, ten):
    """Columns in front of the body, or a text with kcat's letters."""
    assert cli("consume", ten, "--headers", "--keys", "-c", "1").stdout == "a=b\tk0\t0\n"
    got = cli("consume", ten, "-o", "8", "--format", r"%t %p %o %k %h %s %S%%\n").stdout
    assert got == "cli-ten 0 8 k8 a=b 8 1%\ncli-ten 0 9 k9 a=b 9 1%\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--format", "%z"), "%z is none of"),
        (("--format", "%s", "--json"), "--json has everything"),
        (("-o", "yesterday"), "'yesterday'"),
        (("--to", "earliest"), "nothing before the beginning"),
        (("--queue", "77"), "the topic has no queue 77; it has"),
        (("--queue", "nobody:0"), "the topic has no queue nobody:0"),
        (("--group", "g", "-o", "5"), "cannot be combined with --group"),
        (("--follow", "--to", "5"), "--follow waits for more"),
    ],
)
def test_wrong_consumes_are_one_sentence(cli, ten, words, says):
    done = cli("consume", ten, *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_places_are_words_times_offsets_and_the_last():
    assert start_place("-5", "x") == Place(last=5)
    assert start_place("5", "x") == end_place("5", "x") == Place(offset=5)
    assert start_place("beginning", "x").word == "earliest"
    assert start_place("2026-01-31T08:00:00Z", "x").word.year == 2026
    for wrong in ("", "--5", "5.5", "1e3", "٣"):
        with pytest.raises(typer.BadParameter):
            start_place(wrong, "x")


def test_a_format_ends_with_whatever_is_there():
    """A lone backslash stays, a lone per cent sign is refused."""
    assert formatter("x\\")(None) == "x\\"
    assert formatter("\\q%%")(None) == "\\q%"
    with pytest.raises(typer.BadParameter):
        formatter("%")
    assert set("sSkgtbpoT") <= set(LETTERS)
