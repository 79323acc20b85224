"""docs/deployment.md and docs/capacity.md: their commands are ours, what they name is there, and their figures are what the formats and the sizing make."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from metaq.cli.commands import all_commands
from metaq.options import StoreOptions
from tests.bench.running import bench_modules
from tests.deploy.charted import CHART
from tests.support import ROOT

PAGE = (ROOT / "docs" / "deployment.md").read_text()
CAPACITY = (ROOT / "docs" / "capacity.md").read_text()
ALL = all_commands()
BLOCKS = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL))
JOINED = [line.partition("  #")[0].strip() for line in BLOCKS.replace("\\\n", " ").splitlines()]
BEFORE = re.compile(r"^(?:docker exec metaq|docker compose .* exec \S+|kubectl .* --|)\s*(metaq .*)$")
LINES = sorted({found[1] for line in JOINED if (found := BEFORE.match(line))})


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_a_command_with_its_flags(line):
    """Also those that are run in a container."""
    words, command = shlex.split(line)[1:], ALL
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert command is not ALL
    for word in words:
        if word.startswith("-"):
            assert any(word in parameter.opts for parameter in command.params), word


def test_it_has_commands():
    """The pattern finds them."""
    assert len(LINES) >= 8


def test_files_that_it_names_are_there():
    """Of deploy/, locks/ and tests/."""
    named = set(re.findall(r"(?<![\w/])((?:deploy|locks|tests)/[\w./-]*\w)", PAGE))
    assert len(named) >= 6
    assert not [name for name in named if not (ROOT / name).exists()]


def test_values_that_it_sets_are_the_charts():
    """Each `--set` and each value in the text is in values.yaml."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    said = set(re.findall(r"--set ([\w.]+)=", PAGE))
    said |= set(re.findall(r"`((?:broker|acl|tls|failover|serviceMonitor)\.[a-z]+[A-Z]\w*)`", PAGE))
    assert len(said) >= 8
    for name in said:
        place = values
        for part in name.split("."):
            assert part in place, name
            place = place[part]


def test_services_that_it_names_are_those_of_the_compose_files():
    """In `exec`, `kill`, `start` and `up`."""
    for file in ("compose", "failover"):
        services = yaml.safe_load((ROOT / "deploy" / "compose" / f"{file}.yaml").read_text())["services"]
        lines = [line for line in JOINED if f"{file}.yaml" in line]
        assert lines
        for line in lines:
            words = shlex.split(line)
            verb = next(place for place, word in enumerate(words) if word in {"exec", "kill", "start", "up"})
            wanted = [word for word in words[verb + 1 :] if not word.startswith("-")][:1]
            assert set(wanted) <= set(services), line


def test_sizes_of_files_are_those_of_the_options():
    """The index's and the log's."""
    store = StoreOptions()
    with bench_modules():
        import capacity
    size = capacity.index_file_bytes(store.max_hash_slot_num, store.max_index_num)
    assert f"{round(size / 1e6)} MB for {store.max_index_num // 1_000_000} million entries" in CAPACITY
    assert store.mapped_file_size_commit_log == 1 << 30
    assert (
        f"files of {store.mapped_file_size_consume_queue // 1_000_000} MB: {store.mapped_file_size_consume_queue // 20:,} messages".replace(
            ",", " "
        )
        in CAPACITY
    )


def test_the_example_is_reckoned_right():
    """From its own first line on."""
    message = 1000 + 200 + 20 + 2 * 21
    assert f"{message:,} B".replace(",", " ") in CAPACITY
    second = 5000 * message
    assert f"{second / 1e6:.1f} MB/s" in CAPACITY
    hourly, daily = second * 73 * 3600 / 1e12, second * 96 * 3600 / 1e12
    assert {f"{hourly:.2f} TB", f"{daily:.2f} TB"} <= set(re.findall(r"[\d.]+ TB", CAPACITY))
    assert f"**{hourly / 0.75:.1f} TB**, or {daily / 0.75:.1f} TB" in CAPACITY
    assert f"{hourly * 1e12 / 110e6 / 3600:.1f} h;" in CAPACITY
