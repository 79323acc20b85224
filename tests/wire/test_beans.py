"""Values by the wanted type: the errors name body and field, and nothing that is short to write is long to read."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.model import ConsumeFrom
from metaq.model.filters.subscription import subscribe
from metaq.wire import beans, bodies, fastjson

GO_HEARTBEAT = (
    b'{"clientID":"10.0.0.1@c","producerDataSet":[],"consumerDataSet":[{"groupName":"CG","consumeType":"CONSUME_PASSIVELY",'
    b'"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"classFilterMode":'
    b'false,"topic":"TopicA","subString":"TagA || TagB","tagsSet":["TagA","TagB"],"codeSet":["2598919","2598920"],'
    b'"subVersion":1795312435453221930,"expressionType":"TAG"},{"classFilterMode":false,"topic":"%RETRY%CG","subString":"*",'
    b'"tagsSet":[],"codeSet":[],"subVersion":1795312435453270483,"expressionType":"TAG"}],"unitMode":false}]}'
)
"""What rocketmq-client-go v2.1.2 sent, but for its address: its sets hold texts."""


def test_a_go_heartbeat_is_read_with_its_tag_hashes():
    """Hashes that come as texts filter as numbers do."""
    (consumer,) = bodies.heartbeat_of(GO_HEARTBEAT).consumers
    assert consumer.subscriptions == {
        "TopicA": subscribe("TopicA", "TagA || TagB", 1795312435453221930),
        "%RETRY%CG": subscribe("%RETRY%CG", "*", 1795312435453270483),
    }
    assert consumer.consume_from is ConsumeFrom.FIRST


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            '{"clientID":"c","consumerDataSet":[{"subscriptionDataSet":[{},{"codeSet":[1,"x"]}]}]}',
            r"the heartbeat: consumerDataSet\[0\]\.subscriptionDataSet\[1\]\.codeSet\[1\] is 'x', need a whole number of 32",
        ),
        ('{"clientID":"c","producerDataSet":5}', r"the heartbeat: producerDataSet is 5, need a list"),
        ('{"clientID":"c","producerDataSet":[5]}', r"the heartbeat: producerDataSet\[0\] is 5, need an object"),
        (
            '{"clientID":"c","consumerDataSet":[{"messageModel":9}]}',
            r"messageModel is 9, need one of BROADCASTING, CLUST",
        ),
        ("[1]", "the heartbeat is list, need a JSON object"),
        ('{"clientID":', "the heartbeat cannot be read: JSON broken at character 12"),
    ],
)
def test_the_error_names_body_and_field(body, says):
    """Whoever reads the log finds the place."""
    with pytest.raises(BadRequest, match=says):
        bodies.heartbeat_of(body.encode())


@pytest.mark.parametrize(
    "value",
    [
        "9" * 41,
        '"' + "9" * 41 + '"',
        "1e999999999",
        '"1' + "," * 60 + '"',
        "1e99999999999999999999999",
        "-1e400",
        "9" * 5000,
        '"1e999999999"',
    ],
)
def test_a_number_that_is_short_to_write_and_long_to_read_is_refused(value):
    """Digits and exponents are bounded before anybody makes a number of them."""
    for field in ("perm", "order", "readQueueNums"):
        with pytest.raises(BadRequest, match=f"{field} is .*need|JSON holds|cannot be read"):
            bodies.topic_of_tree(beans.parse(f'{{"{field}":{value}}}', "topic"))
    if value == "9" * 41:
        return  # a double holds it
    with pytest.raises(BadRequest, match=r"consumeTps is .*need|JSON holds|cannot be read"):
        bodies.consume_stats_of(f'{{"consumeTps":{value}}}'.encode())


def test_a_deep_value_where_a_text_is_wanted_is_a_bad_request():
    """Writing it again must not end in a RecursionError."""
    deep = "[" * 900 + "]" * 900
    for text in (deep, f"{{0:{deep}}}"):
        try:
            bodies.topic_of_tree(beans.parse(f'{{"topicName":{text}}}', "topic"))
        except BadRequest as error:
            assert "topicName" in str(error) or "nested deeper" in str(error)


numbers = st.integers() | st.floats() | st.decimals() | st.booleans() | st.text(max_size=45) | st.none()


@given(numbers)
def test_any_value_is_converted_or_a_mismatch(value):
    """No value makes a conversion fail in another way, and what it gives has its type and its bounds."""
    for convert, kind in ((beans.whole, int), (beans.boolean, bool), (beans.decimal, float), (beans.text, str)):
        try:
            found = convert(value)
        except beans.Mismatch:
            continue
        assert found is None or type(found) is kind
        if kind is int and found is not None:
            assert -(1 << 63) <= found < 1 << 63


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_number_is_the_same_in_every_spelling(number):
    """As a number, as its text, grouped by commas, with a fraction."""
    for spelling in (str(number), f'"{number}"', f'"{number:,}"', f"{number}.5", f"[{number}]"):
        tree = fastjson.loads(spelling)
        value = beans.Value(tree, "number")
        assert (value.wholes()[0] if isinstance(tree, list) else value.whole()) == number
    assert beans.text(fastjson.loads("2.50")) == "2.50"
    assert fastjson.loads("2.50") == Decimal("2.50")
    assert json.loads(fastjson.dumps(fastjson.loads("[2.50]"))) == [2.5]
