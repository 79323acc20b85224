"""The description of all operations: whole, and true."""

from __future__ import annotations

import re

from tests.servers.http.running import running
from tests.servers.http.support import in_loop


@in_loop
async def test_each_operation_is_described(tmp_path):
    async with running(tmp_path) as served:
        told = (await served.client.get("/openapi.json")).json()
        assert told["openapi"] == "3.1.0"
        operations = [(path, method, one) for path, each in told["paths"].items() for method, one in each.items()]
        names = [one["operationId"] for _, _, one in operations]
        assert len(names) == len(set(names))
        assert {"send", "pull", "listen", "offset", "commit", "retry", "metrics", "health"} <= set(names)
        for path, _, one in operations:
            assert one["summary"].endswith("."), one
            inside = {parameter["name"] for parameter in one["parameters"] if parameter["in"] == "path"}
            assert inside == set(re.findall(r"\{(\w+)\}", path))
            for parameter in one["parameters"]:
                assert parameter["in"] == "path" or parameter["description"].endswith("."), parameter
            assert "default" in one["responses"]
        pull = told["paths"]["/topics/{topic}/queues/{queue}/messages"]["get"]
        offset = next(one for one in pull["parameters"] if one["name"] == "offset")
        assert (offset["schema"]["type"], offset["schema"]["minimum"], offset["schema"]["default"]) == ("integer", 0, 0)
        assert "filterType" in {one["name"] for one in pull["parameters"]}
        assert {"Problem", "StoredAsJson", "JsonMessage"} <= set(told["components"]["schemas"])


@in_loop
async def test_each_get_answers_head(tmp_path):
    async with running(tmp_path) as served:
        for path in ("/health", "/metrics", "/openapi.json"):
            told = await served.client.head(path)
            assert (told.status_code, told.content) == (200, b"")
