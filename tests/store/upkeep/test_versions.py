"""Folders of this release open in later ones; those of a later release are refused by name; flips in our own tables are found."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreForeign
from metaq.store.config_file import ConfigFile
from metaq.store.sealed import seal, unseal
from metaq.store.upkeep.check import check
from metaq.store.upkeep.copy import copy
from metaq.store.upkeep.scrub import scrub
from tests.effort import repeats
from tests.store.support import START_MS, open_store, put, read_all
from tests.store.upkeep.kept import KEPT, unpacked
from tests.store.upkeep.support import all_damage, filled


@pytest.mark.parametrize("release", sorted(path.name.removesuffix(".json.gz") for path in KEPT.glob("*.json.gz")))
def test_a_folder_that_a_release_left_opens(tmp_path, release):
    """Clean by each check; each message is read, a new one is put behind, and the folder is clean again."""
    root, facts = unpacked(release, tmp_path / "store")
    assert all_damage(check(root)) == []
    assert all_damage(scrub(root)) == []
    with open_store(root, FakeClock(START_MS + 10_000_000)) as store:
        for queue_id, bodies in enumerate(facts["bodies"]):
            assert [zlib.crc32(body) for body in read_all(store, "orders", queue_id)] == bodies
        put(store, "orders", 0, b"new", key="k")
    assert all_damage(check(root)) == []


def test_a_store_of_a_later_release_is_refused_by_name(tmp_path):
    """By a start and by each tool, before anything is changed."""
    root = filled(tmp_path / "store")
    path = root / "config" / "metaqStore.json"
    assert json.loads(path.read_text())["store"] == 1
    path.write_text(seal('{"store":2}'))
    before = {each: each.read_bytes() for each in root.rglob("*") if each.is_file()}
    told = r"is a store of version 2 \(.*metaqStore\.json\), and this release reads up to 1"
    for refused in (
        lambda: open_store(root),
        lambda: check(root),
        lambda: scrub(root),
        lambda: copy(root, tmp_path / "c"),
    ):
        with pytest.raises(StoreForeign, match=told):
            refused()
    assert before == {each: each.read_bytes() for each in root.rglob("*") if each.is_file()}


def test_one_of_our_files_of_a_later_version_is_refused_by_name(tmp_path):
    """The tails, which are only a hint, too: what they hint at may be something else by then."""
    root = filled(tmp_path)
    path = root / "config" / "metaqTails.json"
    path.write_text(path.read_text().replace('{"v":1,', '{"v":7,'))
    with pytest.raises(StoreForeign, match=r"metaqTails\.json is of version 7, and this release reads version 1"):
        open_store(root)


def test_a_file_of_an_older_release_or_by_hand_is_read_as_it_is(tmp_path):
    """It has no envelope; the next save gives it one."""
    file = ConfigFile(tmp_path / "metaqFloors.json")
    file.path.write_text('{"floors":{"T":5}}')
    assert file.load() == '{"floors":{"T":5}}'
    file.save(file.load())
    assert file.path.read_text() == '{"v":1,"crc":"e4f9a2cc","floors":{"T":5}}'
    assert file.load() == '{"floors":{"T":5}}'
    file.path.write_text(file.path.read_text().replace("5", "6"))
    with pytest.raises(ConfigError, match=r'does not fit its checksum.*remove "v" and "crc"'):
        file.load()
    rocketmqs = ConfigFile(tmp_path / "topics.json")
    rocketmqs.save('{"topicConfigTable":{}}')
    assert rocketmqs.path.read_text() == '{"topicConfigTable":{}}'


@pytest.mark.parametrize(
    "text", ["{}", '{"floors":{}}', '{\n "a": 1\n}\n', '{"queues":{"T":{"0":12345}},"boot":"abc"}']
)
def test_each_flipped_bit_of_a_sealed_text_is_found(text):
    """In the envelope and in what it holds; unsealed it is the text that was."""
    sealed = seal(text)
    assert unseal(sealed, "x") == text
    for bit in range(8, len(sealed) * 8):  # behind the brace: without it there is no object at all
        flipped = bytearray(sealed.encode())
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((ConfigError, StoreForeign, UnicodeDecodeError)):
            unseal(flipped.decode(), "x")


@settings(max_examples=repeats(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_flipped_bit_of_the_tails_is_found_by_a_check(tails, data):
    """With the file's name."""
    root, whole = tails
    path = root / "config" / "metaqTails.json"
    flipped = bytearray(whole)
    bit = data.draw(st.integers(0, len(flipped) * 8 - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    try:
        try:
            found = {one.path for one in all_damage(check(root))}
        except StoreForeign as error:  # another version
            found = {str(path)} if "metaqTails.json is of version" in str(error) else set()
        assert str(path) in found
    finally:
        path.write_bytes(whole)


@pytest.fixture(scope="module")
def tails(tmp_path_factory):
    root = filled(tmp_path_factory.mktemp("tails") / "store")
    return root, (root / "config" / "metaqTails.json").read_bytes()


def test_the_kept_folders_are_small():
    """Together at most 200 KB."""
    assert sum(path.stat().st_size for path in KEPT.iterdir()) <= 200_000
