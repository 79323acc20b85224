"""Secrets stay out of whatever is printed, logged or copied."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback

import msgspec
import pytest

from metaq.errors import Refused
from metaq.model.acl.accounts import Account, AclFile, AclRules
from metaq.model.acl.judgement import Admission, admit
from metaq.model.acl.secret import NO_SECRET, Credentials, Secret

HIDDEN = "tr0ub4dor&3"
SECRET = Secret(HIDDEN)
ACCOUNT = Account("rocketmq2", SECRET)
FILE = AclFile(accounts=(ACCOUNT,))
RULES = AclRules({"plain_acl.yml": FILE})


@pytest.mark.parametrize(
    "value",
    [
        SECRET, ACCOUNT, FILE, RULES, Credentials("rocketmq2", SECRET, SECRET), Admission(ACCOUNT), [SECRET], RULES.accounts,
        RULES.files,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_no_value_shows_a_secret(value):
    """By repr, str, format or as an argument of a log line; nor when it is encoded as JSON, which fails."""
    record = logging.LogRecord("metaq", logging.INFO, __file__, 1, "%s %r", (value, value), None)
    for text in (repr(value), str(value), f"{value}", f"{value!r}", record.getMessage()):
        assert HIDDEN not in text
    with pytest.raises(TypeError):
        msgspec.json.encode(value)


def test_a_refusal_shows_no_secret():
    """Neither its text nor the traceback, with the arguments of the calls."""
    with pytest.raises(Refused) as caught:
        admit(RULES, "10.0.0.1", "rocketmq2", lambda secret: secret.reveal() == "another")
    trace = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert HIDDEN not in "".join(trace.format())


def test_secrets_are_compared_and_not_copied_away():
    """Equal ones are equal; pickles would carry them in clear."""
    assert Secret("a" * 9) == Secret("a" * 9) != Secret("a" * 8)
    assert Secret("käsekuchen") != "käsekuchen"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert copy.copy(SECRET) is SECRET is copy.deepcopy(SECRET)
    assert SECRET
    assert not NO_SECRET
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(SECRET)
