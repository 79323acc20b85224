"""The entry of `.ci/run` (in its clone), of `make nightly` and of `make quick`.

python3 .ci/main.py ci CHECKOUT CLONE WORK SECONDS  (since the run began)
python3 .ci/main.py nightly
python3 .ci/main.py quick
"""

from __future__ import annotations

import signal
import sys

from checks import quick, whole


def main(arguments: list[str]) -> int:
    """Run what the arguments name. Returns the exit code."""
    match arguments:
        case ["ci", checkout, clone, work, seconds]:
            return whole.ci(checkout, clone, work, float(seconds))
        case ["nightly"]:
            return whole.nightly()
        case ["quick"]:
            return quick.main()
    print(__doc__)
    return 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the steps' processes are ended
    sys.exit(main(sys.argv[1:]))
