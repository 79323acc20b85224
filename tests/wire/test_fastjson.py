"""fastjson's dialect: what RocketMQ writes is read, what it demands is written, hostile text is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.wire import fastjson

QUEUE_KEY = (("brokerName", "b"), ("queueId", 0), ("topic", "T"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":[1,2.5,true,null,"x"]}', {"a": [1, 2.5, True, None, "x"]}),
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        ('{"offsetTable":{"T@G":{0:2,1:3}}}', {"offsetTable": {"T@G": {0: 2, 1: 3}}}),
        ('{"t":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}', {"t": {QUEUE_KEY: 5}}),
        (
            '{"t":[[{"queueId":0},5],[{"queueId":1},6]],x:{1:2}}',
            {"t": [[{"queueId": 0}, 5], [{"queueId": 1}, 6]], "x": {1: 2}},
        ),
        ("{a:'it\\'s', b:\"\\u0001\\n\"}", {"a": "it's", "b": "\x01\n"}),
        (" { } ", {}),
        ("{0:1,}", {0: 1}),
        ("[]", []),
        ("{1:{}, 2:[ ]}", {1: {}, 2: []}),
        ("{-3:-4}", {-3: -4}),
    ],
)
def test_both_dialects_are_read(text, value):
    """Standard JSON, bare keys, object keys, single quotes and trailing commas."""
    assert fastjson.loads(text) == value
    assert fastjson.loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{0:1", "need ','"),
        ('{0:"a', "closing quote"),
        ("{0:abc}", "bare word 'abc'"),
        ("{0:1}}", "nothing more"),
        ("", "need a value"),
        ("{0 1}", "need ':'"),
        ('{0:"\\x"}', "valid escape"),
        ("{0:" + "9" * 41 + "}", "41 characters"),
        ("{0:" + "[" * 80, "nested deeper"),
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 100_000, "nested deeper"),
        ("{{1:[2]}:3}", "no flat object"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_broken_and_hostile_text_is_refused(text, says):
    """The error says what is wrong and where; depth and number length are bounded."""
    with pytest.raises(BadRequest, match=says):
        fastjson.loads(text)


def test_the_offset_file_is_written_as_rocketmq_writes_it():
    """consumerOffset.json, byte for byte as observed."""
    tree = {"offsetTable": {"TopicA@CG": {0: 2, 1: 3, 2: 2, 3: 3}, "B@CG": {0: 1}}}
    text = '{\n\t"offsetTable":{\n\t\t"TopicA@CG":{0:2,1:3,2:2,3:3\n\t\t},\n\t\t"B@CG":{0:1\n\t\t}\n\t}\n}'
    assert fastjson.dumps_file(tree) == text
    assert fastjson.loads(text) == tree


def test_standard_form_quotes_integer_keys():
    """`dumps` is what a strict reader takes, `dumps_java` what Java's tools take."""
    assert fastjson.dumps({"a": {0: "x"}}) == b'{"a":{"0":"x"}}'
    assert fastjson.dumps_java({"a": {0: "x"}}) == b'{"a":{0:"x"}}'
    assert fastjson.dumps_java({QUEUE_KEY: 5}) == b'{{"brokerName":"b","queueId":0,"topic":"T"}:5}'


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 99), inner, min_size=1, max_size=4),
    max_leaves=12,
)


@given(values)
def test_every_form_reads_back(value):
    """What `dumps_java` and `dumps_file` write, `loads` reads, including bare keys and any text."""
    assert fastjson.loads(fastjson.dumps_java(value)) == value
    assert fastjson.loads(fastjson.dumps_file(value)) == value


@given(st.text(alphabet="{}[]:,\"'\\0a1 -.eu\n", max_size=60))
def test_random_text_is_read_or_refused(text):
    """No text makes the reader fail in any other way than BadRequest."""
    try:
        fastjson.loads(text)
    except BadRequest:
        return
    assert text.strip()
