"""The page on MetaQ 1.x over HTTP: its tables are those of the server, and its program runs."""

from __future__ import annotations

import re
import subprocess
import sys

import httpx

from tests.interop.metaq1 import OurServer
from tests.servers.http.metaq1.scenarios import SCENARIOS
from tests.support import PATIENCE, ROOT, environment

PAGE = (ROOT / "docs" / "metaq1-http.md").read_text()


def test_the_page_says_what_the_server_has(tmp_path) -> None:
    """Its routes and parameters are those that the server describes; its program and its commands do what they show."""
    assert sum(map(len, SCENARIOS.values())) == 98 and "ninety-eight requests" in PAGE
    with OurServer(tmp_path, None, {"test": {"numPartitions": 2}}) as server:
        described = httpx.get(f"{server.http}/openapi.json", timeout=PATIENCE).json()["paths"]
        ours = {
            f"{method.upper()} {path}": one
            for path, methods in described.items()
            for method, one in methods.items()
            if one["operationId"].startswith("metaq1")
        }
        routes = set(
            re.findall(r"`((?:GET|POST) /[^`?]*)`", PAGE.partition("## The pages")[2].partition("## The Python")[0])
        )
        letters = {"{topic}": "T", "{group}": "G", "{partition}": "P", "{item}": "ITEM"}
        named = set()
        for route in ours:
            text = route
            for word, letter in letters.items():
                text = text.replace(word, letter)
            named.add(text)
        assert routes == {text for text in named if "{broker}" not in text}
        for route, parameters in re.findall(r"^\| `(/\w+)/B` \| ([^|]+) \|", PAGE, re.MULTILINE):
            method = "POST" if route == "/put" else "GET"
            told = {one["name"] for one in ours[f"{method} {route}/{{broker}}"]["parameters"]} - {"broker"}
            assert set(re.findall(r"`(\w+)`", parameters)) == told, route
        [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        path = tmp_path / "program.py"
        path.write_text(program.replace("http://127.0.0.1:8120", server.http))
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False,
            env=environment() | {"HOME": str(tmp_path)},
        )  # fmt: skip
        assert (done.stdout, done.stderr, done.returncode) == ("stored in 0-1 at 0\ngot b'hello'\n", "", 0)
        end = httpx.get(f"{server.http}/offset/0?topic=test&partition=1&offset={2**63 - 1}", timeout=PATIENCE)
        assert end.text == "25" and f"\n{end.text}\n```" in PAGE
