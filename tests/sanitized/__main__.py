"""`make test-sanitized`: build the compiled modules with ASAN and UBSAN, and run over them what tests them hardest.

    python -m tests.sanitized [--first SEED] [--rounds N] [--lives N] [--workers N]

Sources, tests and modules are a tree of their own in .cache/sanitized, so that the usual build stays as it is. Where the compiler
brings no sanitizers, that is said and nothing is run. Any fault that they find ends the process it happens in, and so its job.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence

from tests.support import MADE_ANEW, ROOT

FOLDER = ROOT / ".cache/sanitized"
TREE, BUILT, STAMP = FOLDER / "tree", FOLDER / "built", FOLDER / "built-from"
COPIED = ("src", "tests", "fuzz", "setup.py", "pyproject.toml", "README.md", "LICENSE")
COMPILER = "cc"
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")
HOT_TESTS = [
    sorted(f"tests/wire/hot/{file.name}" for file in (ROOT / "tests/wire/hot").glob("test_*.py"))[half::2]
    for half in (1, 0)
]
LANE_TESTS = (
    "tests/servers/remoting/test_sweeping.py", "tests/servers/remoting/test_delay_fast_path.py", "tests/servers/remoting/test_transaction_fast_path.py",
    "tests/servers/remoting/test_pull.py", "tests/servers/remoting/test_send.py", "tests/servers/remoting/test_bad_input.py",
)  # fmt: skip
FUZZERS = ("pulls", "appended_parts", "given_back")
"""Those of the compiled extension itself. Those of whole servers and of parsers are in tests/fuzz."""


class Missing(Exception):
    """What the sanitizers need is not on this machine."""


def library() -> str:
    """ASAN's runtime: a Python that was not built with it needs it before everything else."""
    if not sys.platform.startswith("linux"):
        raise Missing(f"LD_PRELOAD and /proc are Linux's, this is {sys.platform}")
    if shutil.which(COMPILER) is None:
        raise Missing(f"there is no {COMPILER}")
    told = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    found = pathlib.Path(told.stdout.strip())
    if not found.is_absolute() or not found.is_file():
        raise Missing(f"{COMPILER} has no libasan.so; it comes with gcc, on some systems in a package libasan")
    with found.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise Missing(f"{found} is no library that can be loaded")
    return str(found)


def environment(asan: str) -> dict[str, str]:
    """Of all that runs over the sanitized modules."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("METAQ_")}
    return {
        **kept,
        "LD_PRELOAD": asan,
        "PYTHONMALLOC": "malloc",  # or most objects lie in arenas of Python's, where one neighbour is as good as another
        "PYTHONPATH": os.pathsep.join((str(TREE / "src"), str(TREE))),
        "PYTHONFAULTHANDLER": "1",  # tells which test or round it was
        # Python keeps what it allocates once until it ends: leaks are not looked for.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
        "METAQ_SANITIZED_TREE": str(TREE),
    }


def copy() -> None:
    """The tree, anew: sources, tests and fuzzers as they are now."""
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, TREE / name, ignore=shutil.ignore_patterns(*MADE_ANEW))
        else:
            shutil.copy2(ROOT / name, TREE)


def build() -> None:
    """The modules, unless those that are there are of these very sources, this compiler and this Python."""
    sources = [TREE / "setup.py"]
    for pattern in ("*.pyx", "*.pxi", "*.h"):
        sources += sorted((TREE / "src").rglob(pattern))
    known = hashlib.sha256(f"{sys.version}{sysconfig.get_config_vars('CFLAGS', 'SOABI')}".encode())
    known.update(subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout)
    for source in sources:
        known.update(source.read_bytes())
    if not STAMP.exists() or STAMP.read_text() != known.hexdigest():
        STAMP.unlink(missing_ok=True)
        shutil.rmtree(BUILT, ignore_errors=True)
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "-j", "2", "--build-lib", BUILT, "--build-temp", FOLDER / "temp"],
            cwd=TREE, env={**os.environ, "METAQ_BUILD_SANITIZED": "1", "CC": COMPILER}, check=True,
        )  # fmt: skip
        shutil.rmtree(FOLDER / "temp", ignore_errors=True)
        STAMP.write_text(known.hexdigest())
    shutil.copytree(BUILT, TREE / "src", dirs_exist_ok=True)


def jobs(asked: argparse.Namespace) -> dict[str, Sequence[str]]:
    """What is run, by name; the longest first."""
    found: dict[str, Sequence[str]] = {"paths": (*PYTEST, *LANE_TESTS)}
    for number, names in enumerate(HOT_TESTS, 1):
        found[f"compiled extension {number}"] = (*PYTEST, *names)
    found["small fuzzers"] = (*PYTEST, "tests/fuzz")
    found["sweep"] = (*PYTEST, "tests/net/test_sweep.py")
    found["syncs"] = (*PYTEST, "tests/store/log/test_flush.py")
    found["threads"] = ("-m", "tests.sanitized.threads")
    found["crashes and power cuts"] = (
        "-m", "tests.crash.simulation", str(asked.first), str(asked.first + asked.lives - 1)
    )  # fmt: skip
    for name in FUZZERS:
        found[f"fuzz {name}"] = ("-m", f"fuzz.{name}", "--seed", str(asked.first), "--rounds", str(asked.rounds))
    return found


def run(arguments: Sequence[str], asan: str) -> tuple[int, float, str]:
    """A job: its exit code, how long it took, and what it said."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=TREE, env=environment(asan), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False,
    )  # fmt: skip
    return done.returncode, time.monotonic() - begin, done.stdout.decode(errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.sanitized", description=__doc__)
    parser.add_argument("--first", type=int, default=100_000, help="the first seed; the small ones are in other tests")
    parser.add_argument("--rounds", type=int, default=500, help="of each fuzzer of the compiled extension")
    parser.add_argument("--lives", type=int, default=60, help="of the simulation of crashes and power cuts")
    parser.add_argument("--workers", type=int, default=2, help="jobs at a time")
    asked = parser.parse_args()
    try:
        asan = library()
    except Missing as why:
        print(f"skipped: no sanitizers here, {why}")
        return 0
    begin = time.monotonic()
    copy()
    build()
    print(f"built in {time.monotonic() - begin:.0f} s", flush=True)
    code, _, told = run([*PYTEST, "tests/sanitized/proof.py"], asan)
    if code:
        print(f"{told}\nthe modules under test are not sanitized, or no fault would be seen: nothing else is run")
        return 1
    failed = list[str]()
    with concurrent.futures.ThreadPoolExecutor(asked.workers) as pool:
        under_way = {pool.submit(run, arguments, asan): name for name, arguments in jobs(asked).items()}
        for done in concurrent.futures.as_completed(under_way):
            name = under_way[done]
            code, seconds, told = done.result()
            failed += [name] if code else []
            last = told.strip().rpartition("\n")[2]
            print(f"{f'FAILED ({code})' if code else 'passed'}  {name}, {seconds:.0f} s: {last}", flush=True)
            if code:
                print(told, flush=True)
    print(f"{len(failed)} jobs failed: {', '.join(failed)}" if failed else "no fault found")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
