"""Whatever a peer puts into a body, decoding it ends in a value or in BadRequest."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.wire import bodies, fastjson
from metaq.wire.beans import Value

DECODERS = {
    name: function for name, function in vars(bodies).items()
    if name.endswith("_of") and callable(function) and name not in {"registration_of", "route_of"}
} | {
    "registration_of": lambda body: bodies.registration_of(body, compressed=False, bare=False),
    "bare registration_of": lambda body: bodies.registration_of(body, compressed=False, bare=True),
    "compressed registration_of": lambda body: bodies.registration_of(body, compressed=True, bare=False),
    "route_of": lambda body: bodies.route_of("T", body),
}  # fmt: skip
TREES = {name: function for name, function in vars(bodies).items() if name.endswith("_of_tree") and name[0] != "_"}

KEYS = sorted(
    {
        "clientID", "clientId", "group", "consumerDataSet", "producerDataSet", "groupName", "subscriptionDataSet",
        "subscriptionData", "topic", "subString", "tagsSet", "codeSet", "subVersion", "expressionType", "messageModel",
        "brokerDatas", "queueDatas", "brokerAddrs", "brokerName", "cluster", "perm", "readQueueNums", "writeQueueNums",
        "topicSysFlag", "brokerAddrTable", "clusterAddrTable", "topicConfigTable", "topicConfigSerializeWrapper",
        "dataVersion", "counter", "timestamp", "offsetTable", "table", "topicList", "groupList", "consumerIdList",
        "connectionSet", "version", "subscriptionTable", "consumeTps", "maxOffset", "queueId", "topicName", "order",
        "subscriptionGroupTable", "retryMaxTimes", "0", "-1",
    }
)  # fmt: skip
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "-", "--1", "12", "²", "TAG", "*", "9" * 30]) | st.text(max_size=5)
)  # fmt: skip
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
)


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS.keys())
def test_any_json_is_a_value_or_a_bad_request(decode) -> None:
    """Wrong types in every place of every body."""

    @given(trees)
    def check(tree: object) -> None:
        with contextlib.suppress(BadRequest):
            decode(json.dumps(tree).encode("utf-8", "replace"))

    check()


@pytest.mark.parametrize("decode", TREES.values(), ids=TREES.keys())
def test_any_tree_is_a_value_or_a_bad_request(decode) -> None:
    """The same for the parsed form that configuration files share."""

    @given(trees)
    def check(tree: object) -> None:
        with contextlib.suppress(BadRequest):
            decode(Value(tree, "tree"))

    check()


pieces = st.sampled_from(
    ["{", "}", "[", "]", ":", ",", '"a"', "'b'", "c", "0", "-1", "1.5", "true", "null", "NaN", '"', "'", "\\", " ", "\n",
     '{"queueId":0}', "\\u0041", "9" * 41, "é"]
)  # fmt: skip


@given(st.lists(pieces, max_size=25).map("".join) | st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_parses_or_is_a_bad_request(text: str | bytes) -> None:
    """fastjson's dialect never ends in another error, and never in a value that cannot be written again."""
    with contextlib.suppress(BadRequest):
        fastjson.dumps_java(fastjson.loads(text))


@pytest.mark.parametrize(
    "table",
    [
        {"T": {"readQueueNums": 2_000_000_000}},
        {"T": {"writeQueueNums": -1}},
        {"T": {"perm": 1 << 70}},
        {"T": {"readQueueNums": "--1"}},
    ],
)
def test_registration_that_would_hurt_every_client_is_refused(table: dict[str, object]) -> None:
    """Clients make a list of a topic's queues, and every route must be writable as JSON."""
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}}).encode()
    with pytest.raises(BadRequest, match="need"):
        bodies.registration_of(body, compressed=False, bare=False)


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS.keys())
@pytest.mark.parametrize("deep", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900, "[" + "1," * 10_000 + "1]"])
def test_a_deep_or_long_part_in_any_place_is_refused_briefly(decode, deep: str) -> None:
    """The error that shows it must not itself be too deep or too long."""
    for key in KEYS:
        try:
            decode(f'{{"clientID":"c","{key}":{deep}}}'.encode())
        except BadRequest as error:
            assert len(str(error)) < 500
