"""Instructions that the compiled extension's paths take, against those of the committed baseline: a guard that no load disturbs.

    python bench/instruction_counts.py            # compare with instruction_counts.json; 1 if a path takes 3 % more
    python bench/instruction_counts.py --record   # write that file, after a change that is meant

The workloads are those of hot_bench.py, run once under callgrind of valgrind, which counts what the process executes; so the
figures are the same on an idle and on a busy machine. They hold for one compiler and one Python: a baseline of others is
not compared with.
"""

import argparse
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

BASELINE = Path(__file__).with_name("instruction_counts.json")
ALLOWED = 0.03
ALLOWED_OF_OBJECTS = 0.1
"""Of paths that make Python objects: what the allocator does for one hangs on the heap as it happens to be."""
OBJECTS = ("to objects", "recover", "producer add")
MARK = "getsid"
"""A system call that nobody else makes: callgrind writes what it has counted whenever it begins."""


def built_with() -> str:
    """What instruction counts hang on beside our sources: compiler and its flags, Python, C library, processor."""
    compiler = subprocess.run(["cc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    vectors = "AVX2" if " avx2 " in Path("/proc/cpuinfo").read_text() else "no AVX2"  # the C library's copies differ
    library, python, flags = " ".join(platform.libc_ver()), platform.python_version(), sysconfig.get_config_var("OPT")
    return f"cc {compiler}, Python {python}, {flags}, {library}, {platform.machine()}, {vectors}"


def inside() -> None:
    """Run the workloads, each between two marks. For a process under valgrind."""
    sys.path.insert(0, str(Path(__file__).parent))
    import hot_bench
    from metaq.wire.hot import _native as _hot

    rows_of: list[int] = []

    def counted(work: Callable[[], None], rows: int, _rounds: int = 1) -> float:
        work()  # what the first call alone does is not a path's cost
        gc.collect()
        gc.disable()  # when it runs hangs on all that was made before
        os.getsid(0)
        work()
        os.getsid(0)
        gc.enable()
        rows_of.append(rows)
        return 0.0

    hot_bench.best_ns = counted
    names = list(hot_bench.figures(hot_bench.Bench(_hot)))
    print(json.dumps(dict(zip(names, rows_of, strict=True))))


def measure() -> dict[str, float]:
    """Per path: instructions a row. Raises CalledProcessError: valgrind or a workload failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", f"--dump-before={MARK}", "-q"]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            [*command, sys.executable, __file__, "--inside"],
            env=environment, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        rows_of: dict[str, int] = json.loads(done.stdout)
        parts = [total_of(Path(f"{folder}/out.{number}")) for number in range(1, 2 * len(rows_of) + 1)]
    return {name: parts[2 * place + 1] / rows for place, (name, rows) in enumerate(rows_of.items())}


def total_of(part: Path) -> int:
    """Instructions counted in one dump of callgrind."""
    found = re.search(r"^(?:summary|totals): (\d+)", part.read_text(), re.MULTILINE)
    assert found is not None, f"{part} has no sum"
    return int(found[1])


def compared(before: dict[str, int], counts: dict[str, int]) -> tuple[list[str], list[str]]:
    """A line for each path, and the paths that take more than is allowed, or that the baseline does not know."""
    lines, worse = [], []
    for name, count in counts.items():
        change = count / before[name] - 1 if name in before else float("inf")
        allowed = ALLOWED_OF_OBJECTS if any(part in name for part in OBJECTS) else ALLOWED
        if change > allowed:
            worse.append(name)
        word = "MORE" if change > allowed else "less: record it" if change < -allowed else ""
        lines.append(f"{name:52}{before.get(name, 0):10,}{count:10,}{change:+8.1%}  {word}".rstrip())
    return lines, worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the baseline")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        inside()
        return 0
    if shutil.which("valgrind") is None or shutil.which("cc") is None:
        print("skipped: valgrind or cc is not installed")
        return 77
    here = built_with()
    if not chosen.record:
        baseline = json.loads(BASELINE.read_text())
        if baseline["built_with"] != here:
            print(f"skipped: the baseline is of {baseline['built_with']}, this is {here}; --record makes one")
            return 77
    counts = {name: round(count) for name, count in measure().items()}
    if chosen.record:
        BASELINE.write_text(json.dumps({"built_with": here, "instructions": counts}, indent=1) + "\n")
        print(f"wrote {BASELINE.name}")
        return 0
    lines, worse = compared(baseline["instructions"], counts)
    print("\n".join(lines))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
