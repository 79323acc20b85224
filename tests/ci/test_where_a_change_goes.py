"""CONTRIBUTING.md's table "where a change goes" is true: for its rows a small change is made in a copy of the sources, works, and
touches as many files as the table says."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.support import MADE_ANEW, PATIENCE, ROOT, environment

pytestmark = pytest.mark.slow

KEPT = tuple(pattern for pattern in MADE_ANEW if pattern != "*.so")


@dataclasses.dataclass(frozen=True)
class Edit:
    """Lines that go into a file: in front of a line, or behind it; without one the file is new."""

    file: str
    lines: str
    before: str = ""
    after: str = ""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A change for a row of the table, and a program that fails without it."""

    row: str
    files: int
    edits: tuple[Edit, ...]
    program: str


BROKER = """
import asyncio, socket, sys
from metaq.app.broker import start_broker
from metaq.options import BrokerOptions, StoreOptions
from metaq.testing import free_port
from metaq.wire.command import Command
from tests.support import exchange

def ask(code, **options):
    async def run():
        running = await start_broker(
            BrokerOptions(listen_port=0, bind_address="127.0.0.1", broker_ip1="127.0.0.1", vip_port_enable=False, **options),
            StoreOptions(store_path_root_dir=sys.argv[1]),
        )
        try:
            return await asyncio.to_thread(what, running.address, code)
        finally:
            await running.close()
    return asyncio.run(run())

def what(address, code):
    return exchange(address, [Command(code)])[0] if isinstance(code, int) else code()
"""
OPTIONS, BROKER_APP, FRONT = "options.py", "app/broker.py", "app/front.py"
AN_OPTION = "    vip_port_enable: bool = option("

SAMPLES = (
    Sample(
        "a request code",
        2,
        (
            Edit("wire/codes.py", "    SAMPLE = 30099\n", before="    HEART_BEAT = 34"),
            Edit(
                "servers/remoting/clients.py",
                "    @handles(RequestCode.SAMPLE, NoHeader, Action.OBSERVE)\n    def _sample(self, call: Call[NoHeader]) -> bytes:\n"
                '        return b"sampled"\n\n',
                before="    @handles(RequestCode.HEART_BEAT, NoHeader, Action.SUBSCRIBE)",
            ),
        ),
        "assert bytes(ask(30099).body) == b'sampled'",
    ),
    Sample(
        "an option",
        2,
        (
            Edit(OPTIONS, '    sample: int = option(7, "A sample.", low=0)\n', before=AN_OPTION),
            Edit(
                BROKER_APP,
                "    if options.sample == 8:\n        raise metaq.ConfigError('sampled')\n",
                before="    front = make_front(",
            ),
        ),
        """
        from metaq.errors import ConfigError
        assert ask(lambda: "runs", sample=7) == "runs"
        try: ask(lambda: "runs", sample=8)
        except ConfigError as error: assert str(error) == "sampled"
        else: raise AssertionError
        """,
    ),
    Sample(
        "a system topic",
        1,
        (
            Edit(
                "model/topics/system.py",
                '    SystemTopic("SAMPLE_TOPIC", queues=1),\n',
                after="SYSTEM_TOPICS: Final = (",
            ),
        ),
        "assert b'SAMPLE_TOPIC' in bytes(ask(21).body)",
    ),
    Sample(
        "a protocol server",
        3,
        (
            Edit(
                "servers/sample.py",
                '''
                """A server that says pong."""

                class SampleSession:
                    def __init__(self, peer):
                        self.peer = peer

                    def data_received(self, data):
                        self.peer.write(b"pong")
                        return len(data)

                    def frame_needed(self):
                        return 0

                    def connection_lost(self, error):
                        pass

                    def closed(self, *_):
                        pass


                class SampleSessions:
                    def session(self, peer):
                        return SampleSession(peer)

                    def tick(self):
                        pass

                    def close(self):
                        pass
                ''',
            ),
            Edit(
                OPTIONS,
                '    sample_port: int = option(0, "Port of the sample server; 0: none.", low=0)\n',
                before=AN_OPTION,
            ),
            Edit(
                FRONT,
                "from metaq.servers.sample import SampleSessions\n",
                before="from metaq.servers.server import",
            ),
            Edit(
                FRONT,
                "    if options.sample_port:\n"
                "        place = options.bind_address, options.sample_port\n"
                '        servers.append(PeerServer("sample", place, limits, lambda _services, _server: SampleSessions()))\n',
                before="    return Front(",
            ),
        ),
        """
        port = free_port()
        def ping():
            with socket.create_connection(("127.0.0.1", port), 60) as connection:
                connection.sendall(b"ping")
                return connection.recv(10)
        assert ask(ping, sample_port=port) == b"pong"
        """,
    ),
    Sample(
        "a pipeline",
        4,
        (
            Edit("pipelines/sample/__init__.py", '"""A sample."""\n'),
            Edit(
                "pipelines/sample/options.py",
                '''
                """The options of the pipeline `sample`."""

                from dataclasses import dataclass
                from pathlib import Path

                from metaq.option_table import option
                from metaq.pipelines.options import PipelineOptions


                @dataclass(frozen=True, kw_only=True)
                class SampleOptions(PipelineOptions):
                    """A sample."""

                    folder: str = option("", "Its folder.")

                    @property
                    def place(self) -> Path:
                        return Path(self.folder)
                ''',
            ),
            Edit(
                "pipelines/sample/service.py",
                '''
                """The pipeline `sample`."""

                from metaq.pipelines.run import Outcome


                def start(spark, options, run):
                    return Outcome({"files": 1}, f"sampled {options.folder}")
                ''',
            ),
            Edit(
                "pipelines/catalogue.py",
                "from metaq.pipelines.sample.options import SampleOptions\n",
                before="from metaq.pipelines.uris import",
            ),
            Edit(
                "pipelines/catalogue.py",
                '        Pipeline("sample", "A sample.", SampleOptions, "sample.service", needs_spark=False),\n',
                before='        Pipeline(\n            "mirror",',
            ),
        ),
        """
        import subprocess
        run = [sys.executable, "-m", "metaq", "pipeline"]
        assert "sample" in subprocess.run([*run, "list"], capture_output=True, text=True, check=True).stdout
        done = subprocess.run([*run, "run", "sample", "--folder", sys.argv[1]], capture_output=True, text=True)
        assert f"sampled {sys.argv[1]}" in done.stdout, done
        """,
    ),
)


def apply(edit, sources):
    """Make the change. A sample whose line is gone shows that the way of such a change is another now: so is the table's row."""
    file = sources / edit.file
    text = textwrap.dedent(edit.lines).lstrip("\n") if not edit.before + edit.after else edit.lines
    if edit.before or edit.after:
        line, now = edit.before or edit.after, file.read_text()
        assert line in now, f"{edit.file} has no {line!r} any more"
        at = now.index(line) if edit.before else now.index("\n", now.index(line)) + 1
        text = now[:at] + text + now[at:]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The sources, for all samples; each has a copy of what it changes."""
    folder = tmp_path_factory.mktemp("sources") / "src"
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns(*KEPT))
    return folder / "metaq"


def row_of(name):
    """The third column of a row of the table."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"^\| {re.escape(name)}[^|]*\|[^|]*\|([^|]*)\|$", text, re.MULTILINE)
    assert found, f"CONTRIBUTING.md has no row for {name}"
    return found[1].strip()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.row.replace(" ", "-"))
def test_a_change_takes_as_many_files_as_the_table_says(sample, copied, tmp_path):
    """And works: the program fails on the sources as they are."""
    before = {
        edit.file: (copied / edit.file).read_text() if (copied / edit.file).exists() else None for edit in sample.edits
    }
    program = BROKER + textwrap.dedent(sample.program)

    def run(folder):
        paths = environment(PYTHONPATH=f"{copied.parent}:{ROOT}")
        command = [sys.executable, "-c", program, str(tmp_path / folder)]
        return subprocess.run(
            command, cwd=tmp_path, env=paths, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    assert run("without").returncode != 0
    try:
        for edit in sample.edits:
            apply(edit, copied)
        done = run("with")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for name, text in before.items():
            (copied / name).write_text(text) if text is not None else (copied / name).unlink(missing_ok=True)
    assert len(before) == sample.files
    assert re.search(rf"\b{sample.files}\b", row_of(sample.row)), f"{sample.row}: {row_of(sample.row)}"


def test_every_path_that_the_table_names_exists():
    """As it stands, or as a pattern; below src/metaq, or in the project."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Where a change goes") :].split("\n\n")[2]
    named = set(re.findall(r"`([\w./*-]+(?:\.py|\.toml|\.md|/))`", table))
    assert len(named) > 8
    missing = {
        name
        for name in named
        if not any((place / name).exists() or [*place.glob(name)] for place in (ROOT / "src/metaq", ROOT))
    }
    assert missing == set()
