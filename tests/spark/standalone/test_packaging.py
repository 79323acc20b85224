"""How MetaQ comes to a cluster's machines, as docs/spark-cluster.md says: each way with workers that have nothing of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from metaq.wire import hot
from tests.spark.jvm import java_options
from tests.spark.standalone.environments import packages, without_metaq
from tests.spark.standalone.servers import SPARK_HOME, spark_environment
from tests.support import ROOT, WHOLE_PATIENCE
from tests.system.wheel import distributions, run

APP = Path(__file__).with_name("app.py")
PAGE = (ROOT / "docs" / "spark-cluster.md").read_text()
ROWS = 400
needs_spark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]


@pytest.fixture(scope="module")
def wheel():
    return next(distributions().glob("*.whl"))


@pytest.fixture(scope="module")
def package(wheel, tmp_path_factory):
    """The wheel under a name that Spark takes for Python: a wheel is a zip."""
    return shutil.copy(wheel, tmp_path_factory.mktemp("package") / "metaq.zip")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return without_metaq(tmp_path_factory.mktemp("bare") / "env")


class Said(NamedTuple):
    """What one of an application's workers has: the native module or not, and where MetaQ is; and what the driver has written."""

    native: bool
    file: str
    log: str


@pytest.fixture
def submit(copies):
    """Run the application and check what it reads and writes.

    With a master, a Python, more options of `spark-submit`, how it gets to MetaQ (app.py), and what is on the driver's PYTHONPATH.
    """

    def submit(
        master: str, python: Path, *options: str, way: tuple[str, ...] = ("found",), path: tuple[Path, ...] = ()
    ):
        copies.fill(ROWS)
        env = spark_environment(
            *path, SPARK_HOME=str(SPARK_HOME), PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=str(python)
        )
        settings = {
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": java_options(),
            "spark.executor.extraJavaOptions": java_options(),
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master]
        command += [word for name, text in settings.items() for word in ("--conf", f"{name}={text}")]
        command += [*options, str(APP), copies.namesrv, copies.topic, copies.target, *way]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False, env=env, cwd=copies.folder
        )
        # A driver's traceback is an output here.
        assert done.returncode == 0, f"{done.stdout[:4000]}\n[...]\n{done.stderr[-2000:]}"
        times = 2 if way == ("found",) else 1  # By a batch, and by a stream.
        assert sorted(message.body.decode() for message in copies.read(copies.target)) == sorted(copies.sent * times)
        (seen,) = (line.removeprefix("seen ") for line in done.stdout.splitlines() if line.startswith("seen "))
        (native,) = {one["native"] for one in json.loads(seen)}
        return Said(native, json.loads(seen)[0]["file"], done.stdout + done.stderr)

    return submit


def test_the_package_works_from_a_zip_by_the_plain_fallback(bare, tmp_path):
    """Python loads no native module from a zip."""
    package, sources = tmp_path / "metaq.zip", ROOT / "src"
    with zipfile.ZipFile(package, "w") as target:
        for path in [*sources.glob("metaq/**/*"), *sources.glob("pyspark_metaq/*")]:
            if path.suffix in {".py", ".so"}:
                target.write(path, path.relative_to(sources))
    program = "import pyspark_metaq, metaq; from metaq.wire import hot; print(hot.NATIVE, metaq.__file__)"
    said = run(bare, "-c", program, env=spark_environment(package))
    assert said.strip() == f"False {package}/metaq/__init__.py"


class TestOnACluster:
    pytestmark = needs_spark

    def test_py_files(self, standalone, submit, bare, package):
        """`PYTHONPATH=metaq.zip spark-submit --py-files metaq.zip`: for the driver's side, and for the executors."""
        said = submit(standalone.url, bare, "--py-files", str(package), path=(package,))
        assert not said.native
        assert "metaq.zip/" in said.file

    def test_py_files_alone(self, submit, bare, package):
        """Enough for batches if the session is ours, which says that it is not for streams."""
        said = submit("local[2]", bare, "--py-files", str(package), way=("session",))
        assert "metaq.zip/" in said.file
        assert "start spark-submit with PYTHONPATH=metaq.zip as well" in said.log

    def test_an_added_artifact(self, standalone, submit, bare, package, tmp_path):
        """By the program of the page in the application itself: for batches."""
        [text] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "addArtifact" in block]
        program = tmp_path / "bring.py"
        program.write_text(text.replace('"metaq.zip"', repr(str(package))))
        said = submit(standalone.url, bare, way=("add", str(program)))
        assert not said.native
        assert "metaq.zip/" in said.file

    def test_an_archive_with_the_native_module(self, standalone, submit, bare, wheel, tmp_path):
        """`spark-submit --archives metaq.tar.gz#metaq`: unpacked in each executor's folder, which PYTHONPATH names."""
        folder = tmp_path / "packages"
        run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, wheel)
        with tarfile.open(tmp_path / "metaq.tar.gz", "w:gz") as archive:
            archive.add(folder, ".")
        said = submit(
            standalone.url,
            bare,
            *("--archives", f"{tmp_path / 'metaq.tar.gz'}#metaq", "--conf", "spark.executorEnv.PYTHONPATH=metaq"),
            path=(folder,),
        )
        assert said.native == hot.NATIVE
        assert "/app-" in said.file
        assert said.file.endswith("/metaq/metaq/__init__.py")

    def test_an_installed_wheel(self, standalone, submit, wheel, tmp_path):
        """In the environment that PYSPARK_PYTHON names on every machine."""
        python = without_metaq(tmp_path / "env")
        # Sessions of this process have put our sources on PYTHONPATH, where pip would take MetaQ for installed.
        install = sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel
        run(*install, env=spark_environment())
        said = submit(standalone.url, python)
        assert said.native == hot.NATIVE
        assert said.file == str(packages(tmp_path / "env") / "metaq" / "__init__.py")
