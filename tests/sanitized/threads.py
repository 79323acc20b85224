"""The thread that syncs without the interpreter (`metaq.store.log._syncing`), under TSAN: python -m tests.sanitized.threads."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

from tests.support import PATIENCE, ROOT

SOURCE = pathlib.Path(__file__).with_name("syncing.c")


def built(folder: pathlib.Path, header: str, name: str) -> pathlib.Path:
    place = folder / name
    place.mkdir()
    (place / "_syncing_c.h").write_text(header)
    command = [
        "cc",
        "-O1",
        "-g",
        "-fsanitize=thread",
        "-pthread",
        f"-I{place}",
        str(SOURCE),
        "-o",
        str(place / "program"),
    ]
    subprocess.run(command, check=True, env=without_preload())
    return place / "program"


def without_preload() -> dict[str, str]:
    """ASAN's runtime and TSAN's are not for one process."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | {
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=66"
    }


def main() -> int:
    header = (ROOT / "src/metaq/store/log/_syncing_c.h").read_text()
    careless = header.replace("    pthread_mutex_lock(&s->lock);\n    *done", "    *done").replace(
        "    *error = s->error;\n    pthread_mutex_unlock(&s->lock);\n", "    *error = s->error;\n"
    )
    assert careless.count("pthread_mutex_lock") == header.count("pthread_mutex_lock") - 1
    with tempfile.TemporaryDirectory() as folder:
        for name, text, wanted in (("as it is", header, 0), ("careless", careless, 66)):
            program = built(pathlib.Path(folder), text, name)
            done = subprocess.run(
                [program], capture_output=True, text=True, env=without_preload(), timeout=PATIENCE, check=False
            )
            if done.returncode != wanted:
                print(f"{name}: exit {done.returncode}, not {wanted}\n{done.stdout}{done.stderr}")
                return 1
            if not wanted:
                print(done.stdout.strip())
    print("no race found; one that was made on purpose was")
    return 0


if __name__ == "__main__":
    sys.exit(main())
