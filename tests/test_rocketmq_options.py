"""tests/rocketmq_options.txt: each option of RocketMQ 4.9.8 takes effect, or its user is told why it does not."""

from __future__ import annotations

import ast
import functools
import pathlib

import pytest

from metaq.app.config_files.keys import GROUP_COMMIT
from metaq.app.config_files.sections import SECTIONS
from metaq.app.configuration import load
from metaq.app.foreign import passed_over
from metaq.app.foreign.refused import PROMISES
from metaq.errors import ConfigError
from metaq.servers.remoting.rocketmq_settings import DEFAULTS
from tests.test_hot_options import EFFECTS

ROOT = pathlib.Path(__file__).parents[1]
LISTED = {
    line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1].strip()
    for line in (ROOT / "tests" / "rocketmq_options.txt").read_text().splitlines()
    if line and not line.startswith("#")
}
OF_ROCKETMQ_5 = {
    "authenticationEnabled", "authorizationEnabled", "enableControllerMode", "enableControllerInNamesrv",
    "enableSlaveActingMaster", "allAckInSyncStateSet", "storeType",
}  # fmt: skip
OF_METAQ_1 = {"slave", "slaveId"}
FIELDS = {spelling: name for table in SECTIONS.values() for spelling, name in table.spellings().items()}


@functools.cache
def cases_in(file: str) -> tuple[str, frozenset[str]]:
    """The text of a file of tests, and their names."""
    text = (ROOT / file).read_text()
    names = {
        node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return text, frozenset(names)


@pytest.mark.parametrize("option", LISTED)
def test_each_option_takes_effect_or_has_its_reason(option):
    """Tests are those of the list, which name the option; nothing else is claimed of an option that is passed over."""
    said, _, shown = LISTED[option].partition(", for ")
    if shown:
        assert shown.partition("::")[2] in cases_in(shown.partition("::")[0])[1]
    if said in {"no effect", "stops the start"}:
        assert (option in passed_over.REASONS, option in PROMISES) == (said == "no effect", said == "stops the start")
        assert said == "stops the start" or option not in FIELDS
        return
    assert option in FIELDS or option == GROUP_COMMIT
    assert option not in passed_over.REASONS
    field = FIELDS.get(option, option)
    if said == "hot":
        assert any(f"{section}.{field}" in EFFECTS for section in ("broker", "store", "namesrv"))
        return
    file, _, name = said.partition("::")
    text, names = cases_in(file)
    assert name in names, f"there is no test {said}"
    assert field in text or option in text, f"{file} says nothing of {option}"


def test_the_list_is_complete():
    """What RocketMQ's classes have (tests/interop holds the defaults against these), and all that is refused or passed over."""
    assert DEFAULTS.keys() - LISTED.keys() == set()
    assert passed_over.REASONS.keys() - LISTED.keys() == set()
    assert PROMISES.keys() - LISTED.keys() == OF_ROCKETMQ_5 | OF_METAQ_1


def test_notices_are_one_line_for_each_reason_and_none_where_nothing_was_set(tmp_path):
    """With all keys of the reason, in a file of RocketMQ's; by -o and in a metaq.toml such a key is an error with its reason."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "bindAddress=127.0.0.1\nwarmMapedFileEnable=true\nsendMessageThreadPoolNums=16\npullMessageThreadPoolNums=20\n"
        "duplicationEnable=false\n"
    )
    pools = passed_over.REASONS["sendMessageThreadPoolNums"]
    assert set(load(str(conf), environment={}).warnings) == {
        f"{conf}: pullMessageThreadPoolNums, sendMessageThreadPoolNums have no effect here: {pools}",
        f"{conf}: warmMapedFileEnable has no effect here: {passed_over.REASONS['warmMapedFileEnable']}",
    }
    conf.write_text("bindAddress=127.0.0.1\nfileReservedTime=5\n")
    assert load(str(conf), environment={}).warnings == ()
    with pytest.raises(ConfigError, match="no option 'sendMessageThreadPoolNums' here: one event loop"):
        load(settings=["sendMessageThreadPoolNums=16"], environment={})
    toml = tmp_path / "metaq.toml"
    toml.write_text("[store]\nwarmMapedFileEnable = true\n")
    with pytest.raises(ConfigError, match="no option 'warmMapedFileEnable' here: log files are reserved whole"):
        load(str(toml), environment={})
