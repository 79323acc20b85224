"""Configuration texts survive a crash at any moment."""

from __future__ import annotations

import errno
import os

import pytest

from metaq.store.config_file import BackgroundFile, ConfigFile
from metaq.store.disk import Disk


def test_saved_text_is_loaded_and_the_version_before_is_kept(tmp_path):
    """In `.bak`, as RocketMQ does."""
    file = ConfigFile(tmp_path / "config" / "topics.json")
    assert file.load() == ""
    file.save("one")
    assert (file.load(), (tmp_path / "config/topics.json.bak").exists()) == ("one", False)
    file.save("two ä")
    assert file.load() == "two ä"
    assert (tmp_path / "config/topics.json.bak").read_text() == "one"
    assert not (tmp_path / "config/topics.json.tmp").exists()


def test_backup_answers_for_a_file_that_is_missing_or_empty(tmp_path):
    """What a crash of RocketMQ between its steps leaves."""
    file = ConfigFile(tmp_path / "topics.json")
    file.save("one")
    file.save("two")
    file.path.write_text("")
    assert file.load() == "one"
    file.path.unlink()
    assert file.load() == "one"
    file.save("three")
    assert file.load() == "three"


def test_a_background_file_holds_what_was_saved_last(tmp_path):
    """Saves return at once and are written in their order; flush waits for the last."""
    file = BackgroundFile(ConfigFile(tmp_path / "config" / "positions.json"))
    for n in range(20):
        file.save(f"{n}")
    file.flush()
    assert file.load() == "19"
    assert ConfigFile(tmp_path / "config" / "positions.json").load() == "19"


def test_a_background_file_that_cannot_be_written_says_so_and_goes_on(tmp_path, caplog):
    """A failed save is logged with the path; a later one works."""
    (tmp_path / "config").write_text("in the way")
    file = BackgroundFile(ConfigFile(tmp_path / "config" / "positions.json"))
    file.save("lost")
    file.flush()
    assert "positions.json could not be saved" in caplog.text
    (tmp_path / "config").unlink()
    file.save("kept")
    file.flush()
    assert file.load() == "kept"


def test_text_and_names_are_synced_before_save_returns(tmp_path):
    """The new folders, the text before it gets its name, and the name last."""

    class Recorder(Disk):
        def sync_file(self, descriptor):
            steps.append((os.fstat(descriptor).st_size, (tmp_path / "config" / "topics.json").exists()))
            super().sync_file(descriptor)

        def sync_folder(self, path):
            steps.append((path.relative_to(tmp_path).as_posix(), sorted(found.name for found in path.iterdir())))
            super().sync_folder(path)

    steps = []
    ConfigFile(tmp_path / "config" / "topics.json", Recorder()).save("four")
    assert steps == [(".", ["config"]), (4, False), ("config", ["topics.json"])]


@pytest.mark.parametrize("before", ["", "old"])
def test_a_text_whose_name_could_not_be_synced_is_not_left_there(tmp_path, before):
    """The change is refused: a broker that is killed right after it must not find it at its next start."""

    class Faulty(Disk):
        failing = 1

        def sync_folder(self, path):
            if path.name == "config" and self.failing:
                self.failing -= 1
                raise OSError(errno.EIO, "Input/output error")
            super().sync_folder(path)

    place = tmp_path / "config" / "topics.json"
    if before:
        ConfigFile(place).save(before)
    file = ConfigFile(place, Faulty())
    with pytest.raises(OSError, match="Input/output error"):
        file.save("refused")
    assert file.load() == ConfigFile(place).load() == before
    assert place.exists() is bool(before)
    file.save("taken")
    assert file.load() == "taken"
