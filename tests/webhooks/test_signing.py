"""Signatures, held against the vectors and the library of Standard Webhooks."""

from __future__ import annotations

import base64
import datetime as dt

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from metaq.clock import SYSTEM
from metaq.errors import ConfigError
from metaq.webhooks.signing import Secret, SignatureWrong, read_secrets, signed_fields, verify

TEXT = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret, of 32 bytes, yes").decode()
ID, TIME, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'


def test_the_vector_of_the_specification():
    fields = signed_fields([Secret(TEXT)], ID, TIME, BODY)
    assert fields == {
        "webhook-id": ID,
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@given(st.text(min_size=1), st.sampled_from([TEXT, OTHER]))
def test_their_library_takes_ours_and_ours_takes_theirs(body, text):
    now = SYSTEM.now_ms() // 1000
    fields = signed_fields([Secret(OTHER), Secret(TEXT)], ID, now, body.encode())
    standardwebhooks.Webhook(text).verify(body, fields, json_parse=False)
    theirs = standardwebhooks.Webhook(text).sign(ID, dt.datetime.fromtimestamp(now, dt.UTC), body)
    given_fields = {"webhook-id": ID, "webhook-timestamp": str(now), "webhook-signature": theirs}
    assert verify([Secret(TEXT), Secret(OTHER)], given_fields, body.encode(), now) == ID


def test_each_secret_signs_while_one_is_replaced():
    fields = signed_fields([Secret(OTHER), Secret(TEXT)], ID, TIME, BODY)
    for known in (TEXT, OTHER):
        assert verify([Secret(known)], fields, BODY, TIME) == ID


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"body": BODY + b" "}, "by none of the secrets"),
        ({"webhook-id": "another"}, "by none of the secrets"),
        ({"webhook-timestamp": str(TIME + 1)}, "by none of the secrets"),
        ({"webhook-signature": ""}, "no webhook-signature"),
        ({"webhook-signature": "v1,AAAA v2,xyz , ,, é"}, "by none of the secrets"),
        ({"webhook-timestamp": "later"}, "no number of seconds"),
        ({"webhook-timestamp": "9" * 5000}, "no number of seconds"),
        ({"now": TIME + 301}, "300 s"),
        ({"now": TIME - 301}, "300 s"),
    ],
)
def test_what_is_not_as_it_was_sent_is_refused(change, why):
    fields = signed_fields([Secret(TEXT)], ID, TIME, BODY)
    fields |= {name: value for name, value in change.items() if name.startswith("webhook-")}
    with pytest.raises(SignatureWrong, match=why):
        verify([Secret(TEXT)], fields, change.get("body", BODY), change.get("now", TIME))


def test_secrets_are_read_from_files_and_shown_nowhere(tmp_path):
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_text(f"# since March\n{OTHER}\n\n")
    old.write_text(TEXT)
    secrets = read_secrets([new, old])
    assert signed_fields(secrets, ID, TIME, BODY) == signed_fields([Secret(OTHER), Secret(TEXT)], ID, TIME, BODY)
    assert repr(secrets) == "(<Secret>, <Secret>)"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("whsec_nöt", "line 1: a webhook's secret is whsec_ and Base64"),
        ("whsec_c2hvcnQ=", "line 1: a webhook's secret has 5 bytes: need 24 to 64"),
        ("\n# nothing\n", "has no secret"),
        (f"{TEXT}\n" * 9, "9 secrets, 8 are at most"),
    ],
)
def test_a_wrong_file_is_refused_without_a_word_of_it(tmp_path, text, why):
    path = tmp_path / "secret"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        read_secrets([path])
    assert "c2hvcnQ" not in str(caught.value)
    assert "MfKQ9r8" not in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(ConfigError, match=r"secretFiles: /nowhere cannot be read"):
        read_secrets(["/nowhere"])
