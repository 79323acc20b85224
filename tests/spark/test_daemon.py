"""The daemon that Spark forks its Python workers from, with imports done before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from metaq.spark import interpreter
from metaq.spark.engine import session as engine
from tests.spark.test_interpreter import other_python  # noqa: F401  a fixture
from tests.support import PATIENCE, environment

linux = pytest.mark.skipif(sys.platform != "linux", reason="nothing is imported before forks elsewhere")

THREADS = "import os; print(len(os.listdir('/proc/self/task')))"


def run(program: str, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=PATIENCE, env=environment(**env), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@linux
def test_what_is_imported_before_the_forks_starts_no_thread():
    """A lock that a thread holds while another one forks stays locked in the child."""
    program = f"from metaq.spark import daemon; daemon.warm(daemon.NEEDED); {THREADS}; import sys; print(*sys.modules)"
    threads, *modules = run(program, OMP_NUM_THREADS="1")  # as Spark starts it
    assert threads == "1"
    assert {"pyspark.worker", "metaq.spark.data_source", "metaq.spark.source.fetch", "pyarrow.lib", "numpy"} <= set(
        modules
    )


def test_what_would_draw_the_same_numbers_in_every_worker_is_not_imported():
    """Somebody's function that calls numpy.random.rand() in two tasks gets two numbers."""
    modules = run("from metaq.spark import daemon; daemon.warm(daemon.NEEDED); import sys; print(*sys.modules)")
    assert not {"numpy.random", "pandas", "asyncio", "ssl"} & set(modules)


@pytest.mark.parametrize("raises", ["1", ""], ids=["raises", "prints"])
@pytest.mark.parametrize("own", [False, True], ids=["our daemon", "Spark's own"])
def test_a_worker_whose_peer_has_gone_prints_no_stack_trace(own, raises):
    """The JVM closes the connection of a planner that was idle for a minute: five traces stood in the demo's face.

    In our daemon, and in a planner, which is always forked from Spark's own; whether Spark has the failure of the last write
    raised, as it does by default, or printed.
    """
    program = f"""
import os, socket, sys
if {own}:
    from pyspark import daemon
    sys.modules["__main__"].__spec__ = daemon.__spec__
    sys.modules["__main__"].__dict__.update({{name: value for name, value in vars(daemon).items() if name[0] != "_"}})
    exec(compile(open(daemon.__file__).read().partition("if __name__")[0], daemon.__file__, "exec"), globals())
    from metaq.spark import data_source
else:
    from metaq.spark.daemon import quiet
    quiet()
    from pyspark.daemon import worker
ours, theirs = socket.socketpair()
ours.close()
try:
    worker(theirs, True)
except BaseException:
    (traceback if {own} else __import__("pyspark.daemon").daemon.traceback).print_exc()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=environment(PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE=raises),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_another_failure_of_the_last_write_is_told(capsys):
    """As a full disk's would be."""
    from metaq.spark.daemon import quiet

    module = SimpleNamespace()
    quiet(module)
    try:
        Path("/no such file").stat()
    except OSError:
        module.print("it failed", file=sys.stderr)
        module.traceback.print_exc()
    assert capsys.readouterr().err.startswith("it failed\nTraceback")


@linux
def test_where_numpy_has_threads_its_forks_compute_all_the_same():
    """OMP_NUM_THREADS of executors may be more than one: the threads end before the fork."""
    program = """
import os
from metaq.spark import daemon
daemon.warm(daemon.NEEDED)
import numpy, pyarrow as pa, pyarrow.compute as pc
for _ in range(3):
    pid = os.fork()
    if not pid:
        square = numpy.ones((600, 600))
        exact = (square @ square)[0, 0] == 600
        summed = pa.table({"a": range(100_000)}).group_by([]).aggregate([("a", "sum")])["a_sum"][0].as_py() == 4_999_950_000
        os._exit(0 if exact and summed else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run(program, OMP_NUM_THREADS="4") == ["0", "0", "0"]


def test_a_module_that_fails_stops_no_daemon_and_says_nothing_to_spark(tmp_path):
    """Spark takes the first bytes of standard output for the daemon's port. Workers that need the module tell what is wrong."""
    (tmp_path / "talks.py").write_text("print('hello from an import')\nraise RuntimeError('broken')\n")
    program = """
import sys
import os
sys.path.insert(0, os.environ["BROKEN"])
from metaq.spark import daemon
daemon.warm(["talks", "there_is_none", "fractions"])
print("fractions" in sys.modules, "talks" in sys.modules)
"""
    assert run(program, BROKEN=str(tmp_path)) == ["True", "False"]


def test_the_collector_has_nothing_to_look_through_after_a_task():
    """Workers collect garbage after each: with all that is imported, for longer than a small task takes."""
    before, after = run(
        "import gc; from metaq.spark import daemon; daemon.warm(daemon.NEEDED); print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    assert int(after) < int(before) / 100


@pytest.fixture
def no_jvm(monkeypatch):
    """As in a program that has started no Spark yet."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv(interpreter.CHOICE, raising=False)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


def test_a_session_gets_the_daemon_where_its_workers_find_it(no_jvm, other_python, monkeypatch):  # noqa: F811
    """Where they do not, no function of any worker would run."""
    assert engine.daemon_setting("local[2]") == {"spark.python.daemon.module": "metaq.spark.daemon"}
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv(interpreter.CHOICE, str(other_python))
    assert engine.daemon_setting("local[2]") == {}
    monkeypatch.setenv(interpreter.CHOICE, str(other_python.parent / "gone"))
    assert engine.daemon_setting("local[2]") == {}


@pytest.mark.parametrize("master", [None, "spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_where_executors_run_elsewhere_their_owner_chooses(no_jvm, master):
    """This machine cannot say what they find."""
    assert engine.daemon_setting(master) == {}


def test_under_spark_submit_the_daemon_is_for_its_user_to_choose(no_jvm, monkeypatch):
    """What `--py-files` brings is on this program's path, and not on the daemon's."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    assert engine.daemon_setting("local[2]") == {}


def test_the_path_that_counts_is_that_of_a_jvm_that_runs(no_jvm, other_python, monkeypatch):  # noqa: F811
    """It starts the daemon, with the environment that it was started with itself."""
    from pyspark import SparkContext

    system = SimpleNamespace(getenv=lambda name: {"PYTHONPATH": ""}[name])
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(jvm=SimpleNamespace(System=system)))
    monkeypatch.setenv(interpreter.CHOICE, str(other_python))
    assert engine.daemon_setting("local[2]") == {}


@linux
@pytest.mark.spark
def test_workers_of_a_session_are_forks_of_it(spark):
    """Each has what was imported before it was forked, and its collector passes that over."""

    def looked(batches):
        import gc

        import pyarrow as pa

        for batch in batches:
            parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
            said = [f"{parent[2]} {gc.get_freeze_count() > 10_000}"] * len(batch)
            yield pa.RecordBatch.from_arrays([pa.array(said)], ["said"])

    found = spark.range(4, numPartitions=2).mapInArrow(looked, "said string").collect()
    assert [row.said for row in found] == ["metaq.spark.daemon True"] * 4
