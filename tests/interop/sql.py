"""What RocketMQ's own SQL filter makes of `tests/sql_cases.py`. As a program it writes `tests/wire/sql_vectors.json`.

The file: a letter per property text (T true, F false, N null, X failed), or "" for what does not compile → expressions.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop import maven
from tests.sql_cases import EXPRESSIONS, PROPERTIES
from tests.support import WHOLE_PATIENCE

SOURCE = Path(__file__).parent / "java" / "SqlFilters.java"
VECTORS = Path(__file__).parents[1] / "wire" / "hot" / "sql_vectors.json"

Vectors = dict[str, list[str]]


def run(folder: Path) -> Vectors:
    """Compile the program into `folder` and ask it about every expression. Skips the test without Java or Maven."""
    classpath = f"{maven.jars(*maven.SERVER)}/*"
    subprocess.run(
        [maven.java(compiler=True), "-cp", classpath, "-d", str(folder), str(SOURCE)],
        check=True,
        timeout=WHOLE_PATIENCE,
    )
    lines = [json.dumps(part) for part in (PROPERTIES, *EXPRESSIONS)]
    done = subprocess.run(
        [maven.java(), "-Xmx128m", "-cp", f"{folder}:{classpath}", "SqlFilters"],
        input="\n".join(lines) + "\n", capture_output=True, encoding="utf-8", timeout=WHOLE_PATIENCE, check=True,
    )  # fmt: skip
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(EXPRESSIONS), done.stderr[-2000:]
    vectors: Vectors = {}
    for expression, answer in zip(EXPRESSIONS, answers, strict=True):
        vectors.setdefault(answer, []).append(expression)
    return vectors


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        parts = [f"{json.dumps(result)}: {json.dumps(texts)}" for result, texts in run(Path(folder)).items()]
    VECTORS.write_text("{" + ",\n".join(parts) + "}\n", "utf-8")
    print(f"{VECTORS}: {VECTORS.stat().st_size} bytes", file=sys.stderr)
