"""What fastjson itself makes of `tests/fastjson_cases.py`. As a program it writes `tests/wire/fastjson_vectors.json`.

The file: target → what the object held, as JSON with its nulls, or "" where it was refused → the texts that made it so.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fastjson_cases import TARGETS
from tests.interop import maven
from tests.support import WHOLE_PATIENCE

SOURCE = Path(__file__).parent / "java" / "Fastjson.java"
VECTORS = Path(__file__).parents[1] / "wire" / "fastjson_vectors.json"
_NOW = re.compile(r'"(timestamp|subVersion)":1[5-9]\d{11}\b')
"""The default of these is the moment of their making."""

Vectors = dict[str, dict[str, list[str]]]


def run(folder: Path) -> Vectors:
    """Compile the program into `folder` and ask it about every text. Skips the test where there is no Java or Maven."""
    classpath = f"{maven.jars(*maven.SERVER)}/*"
    subprocess.run(
        [maven.java(compiler=True), "-cp", classpath, "-d", str(folder), str(SOURCE)],
        check=True,
        timeout=WHOLE_PATIENCE,
    )
    cases = [(name, text) for name, target in TARGETS.items() for text in target.texts]
    lines = []
    for name, text in cases:
        lines.append(f"org.apache.rocketmq.{TARGETS[name].java}\t{TARGETS[name].body(text)}\n")
    command = [maven.java(), "-Xmx128m", "-cp", f"{folder}:{classpath}", "Fastjson"]
    done = subprocess.run(
        command,
        input="".join(lines),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=WHOLE_PATIENCE,
        check=True,
    )
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(cases), done.stderr[-2000:]
    vectors: Vectors = {name: {} for name in TARGETS}
    for (name, text), answer in zip(cases, answers, strict=True):
        vectors[name].setdefault(_NOW.sub(r'"\1":null', answer), []).append(text)
    return vectors


def _json(part: object) -> str:
    return json.dumps(part, ensure_ascii=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        parts = [
            f"{json.dumps(name)}: {{\n"
            + ",\n".join(f"{_json(result)}: {_json(texts)}" for result, texts in results.items())
            + "}"
            for name, results in run(Path(folder)).items()
        ]
    VECTORS.write_text("{" + ",\n\n".join(parts) + "}\n", "utf-8")
    print(f"{VECTORS}: {VECTORS.stat().st_size} bytes", file=sys.stderr)
