"""A pipeline of the user's own: the project that `metaq pipeline init` writes works as it stands."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import metaq
from metaq.errors import ConfigError
from metaq.pipelines.catalogue import load
from tests.pipelines.commands import run_here
from tests.spark.jvm import java_options
from tests.support import WHOLE_PATIENCE, environment, run_metaq


def test_a_project_is_written_once(tmp_path):
    """What is there is not written over, and a name that no module can have is refused."""
    folder = tmp_path / "new"
    done = run_metaq("pipeline", "init", "big-orders", "--folder", str(folder))
    names = {"big_orders.py", "test_big_orders.py", "big_orders.toml", "README.md"}
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == names
    assert done.stdout.split() == [
        str(folder / name) for name in ["big_orders.py", "test_big_orders.py", "big_orders.toml", "README.md"]
    ]
    (folder / "README.md").write_text("mine")
    again = run_metaq("pipeline", "init", "big-orders", "--folder", str(folder))
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert (folder / "README.md").read_text() == "mine"
    for name in ["Big", "1st", "a b", "../up", ""]:
        assert run_metaq("pipeline", "init", name, "--folder", str(tmp_path / "other")).returncode == 2
    assert not (tmp_path / "other").exists()


def test_its_options_are_flags(tmp_path):
    """As those of the ready-made ones; and a wrong key is named."""
    run_metaq("pipeline", "init", "big-orders", "--folder", str(tmp_path))
    file = str(tmp_path / "big_orders.py")
    shown = run_metaq("pipeline", "run", file, "--help")
    assert "--least" in shown.stdout, shown.stderr
    refused = run_metaq("pipeline", "run", file, "--least", "-1", "--folder", "x")
    assert (refused.returncode, refused.stderr) == (2, "metaq: least=-1.0: the smallest allowed value is 0\n")
    (tmp_path / "wrong.toml").write_text("leest = 3\n")
    refused = run_metaq("pipeline", "run", file, "-c", str(tmp_path / "wrong.toml"))
    assert "no option leest" in refused.stderr
    assert "the nearest is least" in refused.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 +", "cannot be loaded: SyntaxError"),
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
        ("PIPELINE = 3", "has no PIPELINE"),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused(tmp_path, text, why):
    """In a sentence, with its path."""
    file = tmp_path / "some_pipeline_of_mine.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        load(file)
    assert "some_pipeline_of_mine" not in sys.modules
    with pytest.raises(ConfigError, match="there is no file"):
        load(tmp_path / "none.py")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
def test_the_project_passes_its_own_test_and_runs(spark, tmp_path, metaq_broker, monkeypatch):
    """With nothing but what is installed: its test, then the command against a broker."""
    from pyspark import cloudpickle

    run_metaq("pipeline", "init", "big-orders", "--folder", str(tmp_path))
    settings = environment(JDK_JAVA_OPTIONS=java_options())
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=WHOLE_PATIENCE,
    )  # fmt: skip
    assert "2 passed" in tested.stdout, tested.stdout[-3000:] + tested.stderr[-3000:]

    with metaq.Producer(metaq_broker.namesrv) as producer:
        for amount in (99, 101):
            producer.send("own_orders", json.dumps({"id": str(amount), "customer": "c", "amount": amount}).encode())
    monkeypatch.chdir(tmp_path)
    words = ["-n", metaq_broker.namesrv, "--topic", "own_orders", "--to", "own_large", "--once"]
    done = run_here(spark, "big_orders.py", "-c", "big_orders.toml", *words)
    assert done.returncode == 0, done.stderr
    cloudpickle.unregister_pickle_by_value(sys.modules.pop("big_orders"))  # both of which end with a command's process
    with metaq.Reader(metaq_broker.namesrv, "own_large", start="earliest", stop_at_end=True) as reader:
        assert [json.loads(message.body)["id"] for message in reader] == ["101"]
    told = run_metaq("pipeline", "status", "--folder", str(tmp_path / "run" / "big-orders"), "--json")
    assert (json.loads(told.stdout)["state"], json.loads(told.stdout)["behind"]) == ("ended", 0)
