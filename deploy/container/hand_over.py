"""Before a broker of a group with failover is stopped: if it leads, another member leads first, and clients have time to learn of it.

    python hand_over.py BROKER MEMBER SECONDS

BROKER is its brokerName, MEMBER its brokerId, SECONDS how long it then goes on relaying what clients still send to it. The chart runs this as
the preStop hook of a pod. Where the cluster is, and by whom it is asked, say NAMESRV_ADDR and METAQ_ACL_FILE, as for every command.

It never holds up a stop for long, and never fails one: what cannot be handed over is taken by another member when the session of this one is
over. Its words go to the log of the process 1, which is the broker's.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import time

COMMAND_SECONDS = 45.0
"""Above what a move takes at most (30 s)."""
LOG = pathlib.Path("/proc/1/fd/2")
"""What a hook prints itself is shown nowhere."""


def say(text: str) -> None:
    print(text, flush=True)
    with contextlib.suppress(OSError), LOG.open("a") as log:
        log.write(f"hand_over: {text}\n")


def metaq(*arguments: str) -> str:
    """Return what a command prints. Raises OSError, SubprocessError: it failed."""
    command = [sys.executable, "-m", "metaq", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS)  # noqa: S603
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr.strip()[-500:] or f"exit code {done.returncode}")
    return done.stdout


def leads(cluster: str, name: str, member: int) -> bool:
    """Return whether this member leads. `cluster`: what `metaq cluster --json` says."""
    told = [one["failover"] for one in json.loads(cluster) if one["broker"] == name and one.get("failover")]
    return any(one["member"] == member and one["leads"] for one in told)


def main(arguments: list[str]) -> int:
    name, member, seconds = arguments[0], int(arguments[1]), float(arguments[2])
    try:
        if not leads(metaq("cluster", "--json"), name, member):
            say(f"member {member} of {name} does not lead: nothing to hand over")
            return 0
        metaq("cluster", "move-leader", name)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        say(f"member {member} of {name} could not hand over, another one takes its place: {error}")
        return 0
    say(f"member {member} of {name} has handed over, and relays for {seconds:g} s")
    time.sleep(seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
