"""Words of XA: names, votes, lists of branches, and what failures are called."""

from __future__ import annotations

import pytest

from metaq.errors import BrokerError, ConfigError, ConnectionFailed, RemoteProtocolError, RequestTimeout, XaError
from metaq.metaq1.conversation import xa
from metaq.metaq1.conversation.xa import Vote, XaCode, Xid, branch_key
from metaq.wire.metaq1.commands import ResultLine, ValueLine


def answer(body: bytes, code: int = 200) -> ResultLine:
    return ResultLine(code, body, 1)


def test_key_of_a_branch_is_that_of_the_reference() -> None:
    """As recorded in 1.10 of the reference."""
    assert str(branch_key(Xid(7, b"g1", b"b1"), "uqA")) == "XID:7:6731:6231:uqA"
    assert str(branch_key(Xid(-1, b"", b""), "q")) == "XID:-1:::q"


@pytest.mark.parametrize(("body", "vote"), [(b"0", Vote.OK), (b"3", Vote.READ_ONLY)])
def test_votes(body: bytes, vote: Vote) -> None:
    assert xa.voted(answer(body), "a:1", "prepare") is vote


@pytest.mark.parametrize("body", [b"", b"1", b"00", b"yes"])
def test_another_vote_is_none(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="in place of a vote"):
        xa.voted(answer(body), "a:1", "prepare")


def test_recovered_branches() -> None:
    """Lines without an end behind the last one; an empty body for none; local keys are left out."""
    keys = xa.recovered(answer(b"XID:7:6731:6231:q\r\nTX:s:1\r\nXID:7:6732::q"), "a:1", "recover")
    assert list(map(str, keys)) == ["XID:7:6731:6231:q", "XID:7:6732::q"]
    assert xa.recovered(answer(b""), "a:1", "recover") == []
    with pytest.raises(RemoteProtocolError, match="a line that is none"):
        xa.recovered(answer(b"nonsense"), "a:1", "recover")
    with pytest.raises(RemoteProtocolError):
        xa.recovered(ValueLine(b"", 1), "a:1", "recover")


@pytest.mark.parametrize(
    ("error", "code", "name", "in_doubt"),
    [
        (BrokerError(500, "XAException:code=-4,msg=no such, really"), -4, "XAER_NOTA", False),
        (BrokerError(500, "XAException:code=104,msg=two\nlines"), 104, "XA_RBOTHER", False),
        (BrokerError(500, "XAException:code=77,msg="), 77, "an XA error", False),
        (BrokerError(500, "disk on fire"), -3, "XAER_RMERR", False),
        (BrokerError(503, ""), -3, "XAER_RMERR", False),
        (RequestTimeout("late"), 106, "XA_RBTIMEOUT", True),
        (RemoteProtocolError("odd"), -3, "XAER_RMERR", False),
    ],
)
def test_failures_in_terms_of_xa(error: Exception, code: int, name: str, in_doubt: bool) -> None:
    found = xa.as_xa_error(error)
    assert (found.code, found.name, found.in_doubt) == (code, name, in_doubt)
    assert str(found).startswith(f"{name} ({code}): ")


@pytest.mark.parametrize("sent", [False, True])
def test_no_connection_says_whether_the_step_may_be_done(sent: bool) -> None:
    error = ConnectionFailed("away")
    error.sent = sent
    found = xa.as_xa_error(error)
    assert (found.code, found.in_doubt) == (-7, sent)


def test_an_xa_error_stays_itself() -> None:
    error = xa.xa_error(XaCode.XA_HEURRB, "by hand")
    assert xa.as_xa_error(error) is error
    assert error.heuristic
    assert not XaError("", 104, "XA_RBOTHER").heuristic


@pytest.mark.parametrize("bad", ["", "a b", "a:b", "a\tb", "ä", "123", "a\r"])
def test_a_qualifier_that_the_protocol_cannot_carry(bad: str) -> None:
    with pytest.raises(ConfigError, match="unique_qualifier="):
        xa.check_qualifier(bad)


@pytest.mark.parametrize("bad", [(2**31, b"", b""), (0, b"x" * 65, b""), (0, b"", b"x" * 65)])
def test_a_name_that_xa_does_not_allow(bad: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(ConfigError):
        Xid(*bad)


def test_a_name_of_wrong_types() -> None:
    with pytest.raises(TypeError, match="global_id"):
        Xid(1, "text", b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="format_id"):
        Xid(True, b"", b"")
