"""Known faults of the packages in a lock, by pip-audit; where its data cannot be had, it says so and passes.

python -m tools.audit locks/all.txt
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def judged(report: str, said: str) -> tuple[int, str]:
    """Return the exit code of an audit and what to say of it.

    Args:
        report: pip-audit's in JSON; empty if it made none.
        said: what it wrote beside, which tells why there is none.
    """
    if not report.strip():
        reason = next((line for line in reversed(said.splitlines()) if line.strip()), "it says no reason")
        return 0, f"skipped: pip-audit has no list of faults here: {reason.strip()[:300]}"
    packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    faults = [f"{one['name']} {one['version']}: {fault['id']}" for one in packages for fault in one.get("vulns", ())]
    if packages and len(unknown) == len(packages):
        return 0, f"skipped: nothing is known here of any of the {len(packages)} packages, so of no fault either"
    left = f"; nothing is known of {', '.join(unknown)}" if unknown else ""
    if faults:
        return 1, "\n".join((*faults, f"packages with known faults: raise their versions by `make lock`{left}"))
    return 0, f"no known faults in {len(packages) - len(unknown)} packages{left}"


def main(arguments: Sequence[str]) -> int:
    lists = [part for path in arguments for part in ("--requirement", path)]
    command = [
        sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json", *lists,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own program
    code, sentence = judged(done.stdout, done.stderr)
    print(sentence)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
