"""A client that `openapi-python-client` makes of a running server's `/openapi.json` does what the document says."""

from __future__ import annotations

import asyncio
import importlib
import json
import pathlib
import subprocess
import sys
from types import ModuleType

from openapi_spec_validator import validate

from tests.servers.http.generator import generator
from tests.servers.http.running import running
from tests.servers.http.support import in_loop
from tests.support import PATIENCE

NAME = "generated_metaq_client"


def generate(document: dict, folder: pathlib.Path) -> None:
    """Make the client. Content types that the generator does not know are left out by it, with a warning."""
    (folder / "openapi.json").write_text(json.dumps(document))
    (folder / "generator.yaml").write_text("post_hooks: []\n")
    subprocess.run(
        [
            sys.executable, "-m", "openapi_python_client", "generate", "--path", str(folder / "openapi.json"), "--meta", "none",
            "--output-path", str(folder / NAME), "--config", str(folder / "generator.yaml"),
        ],
        check=True, capture_output=True, timeout=PATIENCE, env=generator(),
    )  # fmt: skip


class Generated:
    """The client. `models`: its types. `call(name)`: its function of an operation, which raises nothing for a problem."""

    def __init__(self, url: str) -> None:
        self.models: ModuleType = importlib.import_module(f"{NAME}.models")
        self._client = importlib.import_module(NAME).Client(base_url=url)

    def call(self, name: str, *args: object, **query: object) -> object:
        return importlib.import_module(f"{NAME}.api.default.{name}").sync(*args, client=self._client, **query)


def drive(url: str) -> None:
    api = Generated(url)
    models, call = api.models, api.call
    message = models.JsonMessage(body={"id": 42}, tag="paid", keys=["4711"], queue=1)
    stored = call("send", "orders", body=message)
    assert isinstance(stored, models.Stored) and (stored.topic, stored.queue, stored.offset) == ("orders", 1, 0)
    several = call("send", "orders", body=models.JsonMessages([models.JsonMessage(body="a", queue=2), models.JsonMessage(body="b", queue=2)]))  # fmt: skip
    assert isinstance(several, models.StoredMessages) and [one.offset for one in several.messages] == [0, 1]
    together = [models.JsonTopicMessage(topic=topic, body="both", queue=0) for topic in ("orders", "stock")]
    atomic = call("send_together", body=models.JsonTopicMessages(together))
    assert isinstance(atomic, models.StoredTogether) and atomic.delivered and len(atomic.messages) == 2

    pulled = call("pull", "orders", 1, offset=0, max_=10)
    assert isinstance(pulled, models.Pulled) and pulled.outcome == "found"
    [one] = pulled.messages
    assert (json.loads(one.body), one.tag, one.keys) == ({"id": 42}, "paid", ["4711"])

    received = call("receive", "billing", "orders", max_=2, start=models.ReceiveStart.EARLIEST)
    assert isinstance(received, models.Received) and 0 < len(received.messages) <= 2
    acks = models.Acknowledged([one.ack_id for one in received.messages])
    done = call("acknowledge", "billing", body=acks)
    assert isinstance(done, models.GroupOffsets) and sum(one.offset for one in done.offsets) == len(received.messages)
    wrong = call("acknowledge", "billing", body=models.Acknowledged(["nonsense"]))
    assert isinstance(wrong, models.Problem) and wrong.status == 400
    committed = call("commit", "billing", "orders", 2, body=models.Offset(2))
    assert isinstance(committed, models.Offset)
    place = call("offset", "billing", "orders", 2)
    assert isinstance(place, models.Offset) and place.offset == 2

    topics = call("list_topics", count=1000)
    assert isinstance(topics, models.TopicList) and {"orders", "stock"} <= {one.name for one in topics.topics}
    topic = call("get_topic", "orders")
    assert isinstance(topic, models.TopicState) and [one.end for one in topic.queues] == [1, 1, 2, 0]
    groups = call("list_groups", count=1000)
    assert isinstance(groups, models.GroupList) and "billing" in {one.name for one in groups.groups}
    assert isinstance(call("get_group", "billing"), models.GroupState)
    progress = call("get_progress", "billing", topic="orders")
    assert isinstance(progress, models.GroupProgressPage) and len(progress.queues) == 4
    broker = call("get_broker")
    assert isinstance(broker, models.BrokerState) and broker.messages_put >= 3
    assert isinstance(call("health"), models.Health)
    missing = call("get_topic", "nobody")
    assert isinstance(missing, models.Problem) and (missing.status, missing.reason) == (404, "no-topic")


@in_loop
async def test_the_document_is_valid_and_a_generated_client_works(tmp_path, monkeypatch):
    async with running(tmp_path) as served:
        document = (await served.client.get("/openapi.json")).json()
        await asyncio.to_thread(validate, document)
        await asyncio.to_thread(generate, document, tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        await asyncio.to_thread(drive, str(served.client.base_url))
