"""Signatures of requests: RocketMQ's bytes, in every dialect of its clients, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model.acl.secret import Credentials, Secret
from metaq.wire.command import Command, SerializeType, decode, encode
from metaq.wire.signing import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    STREAM_REQUEST,
    UNIQUE_KEY_QUERY,
    Signer,
    content,
    sign,
    signature,
    verify,
)

SECRET = Secret("12345678")
ME = Credentials("rocketmq2", SECRET)

# Signed by AclClientRPCHook of RocketMQ 4.9.7.
SEND = {
    "AccessKey": "rocketmq2", "Signature": "Hq3PZgTkDOF3F8TQ2bOCl0TkX1E=", "a": "PG", "b": "TopicTest", "c": "TBW102", "d": "4",
    "e": "1", "f": "0", "g": "1700000000000", "h": "0", "i": "KEYS\x01café 😀\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
QUERY = {
    "AccessKey": "rocketmq2", "Signature": "bCTIwzO9zGfQIKfcIBdkI+FqlNI=", "_UNIQUE_KEY_QUERY": "true", "beginTimestamp": "0",
    "endTimestamp": "9", "key": "K", "maxNum": "32", "topic": "T",
}  # fmt: skip
TEMPORARY = {
    "AccessKey": "rocketmq2", "ReqT": "0", "SecurityToken": "token", "Signature": "f+Vam4gGqCwdZCMcs4iCkXOHmJI=", "topic": "T",
}  # fmt: skip

texts = st.text(max_size=12)
exts = st.dictionaries(texts | st.sampled_from([UNIQUE_KEY_QUERY, STREAM_REQUEST, "bname", "n"]), texts, max_size=6)


def test_the_vector_of_a_live_broker():
    """A registration without a body, as a 4.9.8 signed it."""
    ext = {"brokerName": "broker-a", "AccessKey": "rocketmq2"}
    assert content(ext) == b"rocketmq2broker-a"
    assert signature(content(ext), SECRET) == "OWag5wTlWGeWX2wVHlu6flz8V30="


@pytest.mark.parametrize(
    ("ext", "body"), [(SEND, "héllo".encode()), (QUERY, b""), (TEMPORARY, b"")], ids=["send", "query", "temporary"]
)
def test_what_java_signs_is_verified(ext, body):
    """And what is changed is not: a value, the body, the signature, the secret, a field more or less."""
    assert verify(ext, body, SECRET)
    assert verify(ext, memoryview(body), SECRET)
    assert not verify(ext, body, Secret("12345679"))
    assert not verify(ext, body + b"!", SECRET)
    assert not verify({**ext, "added": "x"}, body, SECRET)
    for name in ext:
        assert not verify({**ext, name: ext[name] + "x"}, body, SECRET), name
    for bad in ("", "é", ext[SIGNATURE].lower(), ext[SIGNATURE][:-1]):
        assert not verify({**ext, SIGNATURE: bad}, body, SECRET)
    assert not verify({name: value for name, value in ext.items() if name != SIGNATURE}, body, SECRET)


@pytest.mark.parametrize("left_out", [(), (UNIQUE_KEY_QUERY,), (UNIQUE_KEY_QUERY, STREAM_REQUEST)])
def test_every_dialect_is_verified(left_out):
    """Clients of 4.9.4 and newer sign every field, brokers up to 4.9.8 leave one out, older clients sign the header only."""
    ext = {**QUERY, STREAM_REQUEST: "0", "bname": "broker-a"}
    ext[SIGNATURE] = signature(content(ext, b"body", left_out), SECRET)
    assert verify(ext, b"body", SECRET)


@pytest.mark.parametrize("left_out", [("bname",), ("topic",), (ACCESS_KEY,), (SECURITY_TOKEN,), (STREAM_REQUEST,)])
def test_no_other_field_may_be_left_out(left_out):
    """Unsigned, it could be changed on the way."""
    ext = {**QUERY, **TEMPORARY, "bname": "broker-a"}
    ext[SIGNATURE] = signature(content(ext, b"", left_out), SECRET)
    assert not verify(ext, b"", SECRET)


@given(exts, st.binary(max_size=40), texts.filter(bool), texts, texts.filter(bool))
def test_what_we_sign_is_verified_after_the_wire(ext, body, key, token, secret):
    """With every text that a header can carry, in both of its forms; signing twice is signing once."""
    for form in SerializeType:
        command = Command(10, ext=dict(ext), body=body, serialize=form)
        credentials = Credentials(key, Secret(secret), Secret(token))
        sign(command, credentials)
        once = command.ext[SIGNATURE]
        sign(command, credentials)
        assert command.ext[SIGNATURE] == once
        received = decode(encode(command)[4:])
        assert received.ext[ACCESS_KEY] == key
        if "" not in ext:  # the binary form has no nameless fields
            assert verify(received.ext, received.body, Secret(secret))
            assert not verify(received.ext, bytes(received.body) + b"x", Secret(secret))


def test_we_sign_as_brokers_of_rocketmq_verify():
    """Without the field that those of 4.9.4 to 4.9.8 leave out; the token is sent and signed."""
    command = Command(12, ext={name: value for name, value in QUERY.items() if name not in {ACCESS_KEY, SIGNATURE}})
    sign(command, ME)
    assert command.ext == {**QUERY, SIGNATURE: signature(content(QUERY, b"", (UNIQUE_KEY_QUERY,)), SECRET)}
    other = Command(202, ext={"topic": "T", STREAM_REQUEST: "0"})
    sign(other, Credentials("rocketmq2", SECRET, Secret("token")))
    assert other.ext == TEMPORARY


def test_fields_are_in_the_order_of_java():
    """Which compares UTF-16 units: a character beyond the first plane comes before U+FFFF's neighbours."""
    assert content({"\U0001f600": "1", "\uff5e": "2", "a": "3"}) == b"312"


def test_halves_of_characters_are_signed_as_java_writes_them():
    """A question mark each, and never an error."""
    assert content({"a": "x\ud800"}) == b"x?"
    assert not verify({"a": "b", SIGNATURE: "\ud800"}, b"", SECRET)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200), st.binary(max_size=300))
def test_many_signatures_with_one_secret_are_the_same(key, signed):
    """Whatever the secret's length: one of more than 64 bytes is hashed first."""
    secret = Secret(key)
    signer = Signer(secret)
    assert [signer(signed).decode(), signer(signed).decode()] == [signature(signed, secret)] * 2
