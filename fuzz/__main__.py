"""Fuzzes what takes bytes of strangers.

python -m fuzz TARGET [--seconds N]      search, guided by coverage where Atheris is installed (make fuzz installs it)
python -m fuzz all --seconds 60          every target, one after the other, each in a process of its own
python -m fuzz TARGET --input FILE       feed one input: what a fault left in .cache/fuzz/TARGET
python -m fuzz TARGET --keep             add what searches have reached to the committed corpus
python -m fuzz --list
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence

from fuzz.judged import Judged

from fuzz import corpus, engine


def main() -> int:
    """Run what is asked for. Returns the exit code: 1 after a fault."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("target", nargs="?", default="all")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--blind", action="store_true", help="without coverage")
    asked = parser.parse_args()
    if (
        asked.target != "all"
        and not asked.list
        and asked.input is None
        and not asked.keep
        and not asked.blind
        and engine.guided()
    ):
        # Before anything of ours is imported: coverage is counted of what is imported then.
        return _search(asked.target, asked.seconds, asked.seed)
    from fuzz.targets import NAMES, find

    if asked.list:
        print("\n".join(NAMES))
        return 0
    if asked.target == "all":
        return _every(NAMES, asked.seconds, asked.seed, blind=asked.blind)
    target = find(asked.target)
    if asked.input is not None:
        with target.opened() as feed:
            Judged(target, feed)(asked.input.read_bytes())
    elif asked.keep:
        print(f"{target.name}: {corpus.save(target, engine.kept(target))} bytes")
    else:
        engine.use_memory_for_files()
        fed = engine.run(target, asked.seconds, asked.seed)
        print(f"{target.name}: {fed} inputs in {asked.seconds} s, changed blindly: no fault")
    return 0


def _search(name: str, seconds: int, seed: int) -> int:
    if name.startswith("process-"):
        return subprocess.run(  # noqa: S603  our own program
            [sys.executable, "-m", "fuzz", name, "--blind", f"--seconds={seconds}", f"--seed={seed}"], check=False
        ).returncode
    engine.search(name, seconds, seed)
    return 0


def _every(names: Sequence[str], seconds: int, seed: int, *, blind: bool) -> int:
    failed = []
    for name in names:
        command = [
            sys.executable,
            "-m",
            "fuzz",
            name,
            f"--seconds={seconds}",
            f"--seed={seed}",
            *(["--blind"] if blind else []),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603  our own program
        print(
            f"{name}: {_outcome(done.stdout + done.stderr, seconds)}" if not done.returncode else f"{name}: FAULT",
            flush=True,
        )
        if done.returncode:
            failed.append(name)
            print((done.stdout + done.stderr)[-6000:], flush=True)
    print(f"{len(names)} targets, {len(failed)} with faults: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _outcome(text: str, seconds: int) -> str:
    found = re.search(r"number_of_executed_units: (\d+)", text)
    if found is None:
        return text.strip().splitlines()[-1].partition(": ")[2]
    coverage = re.findall(r"cov: (\d+)", text)
    return f"{found[1]} inputs in {seconds} s ({int(found[1]) // max(1, seconds)}/s), {coverage[-1] if coverage else '?'} places reached: no fault"


if __name__ == "__main__":
    sys.exit(main())
