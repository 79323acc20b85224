"""Dead letters chosen and changed by SQL, against a real broker. The oracle is the plain client, never Spark."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.pipelines.redrive.support import JSON, Shop

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def shop(metaq_broker, tmp_path):
    return Shop(metaq_broker.namesrv, tmp_path / "redrive")


def test_what_sql_chooses_goes_back_changed_and_once(spark, shop):
    """From their JSON bodies; the rest stays, and a second run adds nothing."""
    shop.orders(20)
    dead = shop.dead()
    wanted = {
        "where": "value.id % 2 = 1 and properties['colour'] = 'red'",
        "select": "to_json(named_struct('id', value.id, 'at', value.id * 2)) as body, upper(tag) as tag, "
        "string(value.id) as `properties.said`, null as `properties.number`",
        **JSON,
    }
    found = shop.redrive(spark, **wanted)
    odd = [number for number in range(20) if number % 2 and number % 5]
    assert (found["sent"], found["left"], found["not_chosen"], found["unfit"]) == (8, 0, 8, {"corrupt": 4})
    assert shop.text.splitlines()[:2] == [f"8 messages of %DLQ%{shop.group} sent", f"  to {shop.topic}: 8"]
    redriven = shop.redriven()
    assert Counter(message.body for message in redriven) == Counter(
        json.dumps({"id": number, "at": 2 * number}, separators=(",", ":")).encode() for number in odd
    )
    letters = {message.offset_id: message for message in dead}
    for message in redriven:
        letter, properties = letters[message.properties["REDRIVE_ID"]], message.properties
        number = json.loads(letter.body)["id"]
        assert (message.tag, message.keys, message.reconsume_times) == ("PAID", (f"k{number}",), 0)
        assert letter.reconsume_times == 1
        assert message.message_id != letter.message_id
        assert {name: properties.get(name) for name in ("colour", "said", "number", "REDRIVES")} == {
            "colour": "red", "said": str(number), "number": None, "REDRIVES": "1",
        }  # fmt: skip
        place = f"%DLQ%{shop.group}/{letter.queue.broker}/{letter.queue.queue_id}/{letter.queue_offset}"
        assert properties["REDRIVEN_FROM"] == place
        assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "DELAY", "WAIT"} & properties.keys()
    again = shop.redrive(spark, **wanted)
    assert (again["sent"], again["chosen"], again["sent_before"]) == (0, 0, 8)
    assert len(shop.redriven()) == 8
    assert len(shop.dead()) == 20, "dead letters stay where they are"
