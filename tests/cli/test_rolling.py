"""The words of `metaq cluster restart --by`, and what is told while it runs."""

from __future__ import annotations

import re
import sys

import pytest

from metaq.admin.rolling.plan import BrokerProcess
from metaq.admin.rolling.restarting import RollingPhase, RollingProgress
from metaq.cli.cluster.rolling import _Lines, _run, _words
from metaq.errors import ConfigError, MetaqError
from tests.support import PATIENCE

FIRST = BrokerProcess("broker-a", 1, "127.0.0.1:10911")


def progress(phase: RollingPhase, seconds: float, address: str = FIRST.address, detail: str = "") -> RollingProgress:
    return RollingProgress("broker-a", 1 if address else 0, address, phase, seconds, detail)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", "is empty"),
        ("systemctl restart 'metaq", "No closing quotation"),
        ("systemctl restart {name}", "would be the same for all replicas of a broker"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused(command, why):
    with pytest.raises(ConfigError, match=why):
        _words(command)


def test_what_is_filled_in_stays_one_word(tmp_path):
    """No shell sees it, whatever is in a name."""
    file = tmp_path / "told"
    program = f"import sys; open({str(file)!r}, 'w').write('|'.join(sys.argv[1:]))"
    words = [sys.executable, "-c", program, *_words("'{name} $HOME' -{member}- {address}; {other}")]
    _run(words, BrokerProcess("a b;", 2, "h:1"), PATIENCE)
    assert file.read_text() == "a b; $HOME|-2-|h:1;|{other}"


def test_a_command_that_fails_says_what_it_has_said():
    failing = [sys.executable, "-c", "import sys; sys.exit('no such unit')"]
    with pytest.raises(MetaqError, match="has failed with 1: no such unit"):
        _run(failing, FIRST, PATIENCE)
    with pytest.raises(MetaqError, match=re.escape("/nowhere/restart cannot be run: No such file")):
        _run(["/nowhere/restart"], FIRST, PATIENCE)
    with pytest.raises(MetaqError, match=r"has not ended after 0\.01 s, and was killed"):
        _run([sys.executable, "-c", "import time; time.sleep(60)"], FIRST, 0.01)


def test_a_wait_is_told_every_few_seconds_and_each_step_at_once(capsys):
    lines = _Lines(as_json=False)
    assert lines.where() == "nothing was restarted"
    lines.told(progress(RollingPhase.BEGINS, 0, ""))
    for tenth in range(70):
        lines.told(progress(RollingPhase.STARTING, 1 + tenth / 10))
    assert "starting: it does not answer, which goes on by itself; no broker is restarted yet" in lines.where()
    lines.told(progress(RollingPhase.IN_SYNC, 8, detail="after 7.0 s"))
    told = capsys.readouterr().err.splitlines()
    assert [line.split(maxsplit=2)[0] for line in told] == ["0.0", "1.0", "6.0", "8.0"]
    assert told[-1].endswith("broker-a/1 at 127.0.0.1:10911 is in sync (after 7.0 s)")
    assert "restarted and in sync are broker-a/1 at 127.0.0.1:10911" in lines.where()
