"""Whether, where and when the same is asked again."""

from __future__ import annotations

import pickle

import pytest

from metaq.client.conversation.driver import outcome_of
from metaq.client.conversation.groups import ListMembers
from metaq.client.conversation.retry import DENIED_SECONDS, Judgement, Patience, Purpose, judge, refusal
from metaq.client.conversation.routes import GetCluster
from metaq.errors import (
    AccessDenied,
    BadRequest,
    BrokerError,
    ClientClosed,
    ConnectionFailed,
    LocalProtocolError,
    NoRoute,
    Reason,
    Refused,
    RemoteProtocolError,
    RequestTimeout,
)
from metaq.model.acl.secret import Credentials, Secret
from metaq.servers.remoting.dispatch import CODE_OF
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command


def refused(code: int) -> BrokerError:
    return BrokerError(code, "no")


def unsent() -> ConnectionFailed:
    error = ConnectionFailed("refused")
    error.sent = False
    return error


@pytest.mark.parametrize("purpose", [one for one in Purpose if one is not Purpose.GIVE_BACK])
def test_a_busy_peer_is_asked_again_whatever_for_and_it_costs_no_try(purpose):
    judgement = judge(refused(ResponseCode.SYSTEM_BUSY), purpose)
    assert judgement.again
    assert judgement.only_busy
    assert judgement.pause > 0


@pytest.mark.parametrize("purpose", Purpose)
def test_a_closed_client_and_a_message_that_cannot_be_encoded_are_final(purpose):
    assert not judge(ClientClosed("closed"), purpose).again
    assert not judge(LocalProtocolError("too long"), purpose).again


@pytest.mark.parametrize("purpose", Purpose)
def test_an_answer_that_never_came_or_cannot_be_read_may_have_been_a_yes(purpose):
    for error in (ConnectionFailed("broke"), RequestTimeout("late"), BadRequest("no offset"), RemoteProtocolError("x")):
        assert judge(error, purpose).again
        assert judge(error, purpose).maybe_done
    assert judge(unsent(), purpose).again
    assert not judge(unsent(), purpose).maybe_done
    assert not judge(NoRoute("no broker is up"), purpose).maybe_done


def test_a_send_goes_to_another_broker_for_what_is_this_ones_fault_only():
    """RocketMQ's list of codes; an illegal message is illegal everywhere."""
    for code in (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    ):
        assert judge(refused(code), Purpose.SEND).elsewhere
        assert not judge(refused(code), Purpose.SEND).only_busy
    assert judge(ConnectionFailed("down"), Purpose.SEND).elsewhere
    assert judge(refused(ResponseCode.MESSAGE_ILLEGAL), Purpose.SEND) == Judgement(again=False, pause=0.05)


def test_a_pull_cannot_go_elsewhere():
    """A queue is at one broker."""
    for purpose in (Purpose.PULL, Purpose.READ):
        assert not judge(ConnectionFailed("down"), purpose).elsewhere
        assert not judge(refused(ResponseCode.SERVICE_NOT_AVAILABLE), purpose).elsewhere


def test_only_a_member_of_a_group_can_help_a_broker_that_knows_no_subscription():
    for code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
        assert judge(refused(code), Purpose.PULL) == Judgement(again=True, pause=0.1, no_heartbeat=True)
        assert not judge(refused(code), Purpose.READ).again


def test_who_is_no_name_server_is_a_reason_to_ask_the_next():
    assert judge(refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), Purpose.LOOK_UP).elsewhere
    assert not judge(refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), Purpose.SEND).again


def test_pauses_double_up_to_a_limit():
    assert [judge(unsent(), Purpose.SEND, failed).pause for failed in (1, 2, 3, 5, 6, 1000)] == [
        0.05, 0.1, 0.2, 0.2, 0.2, 0.2,
    ]  # fmt: skip
    assert [judge(refused(ResponseCode.SYSTEM_ERROR), Purpose.SEND, failed).pause for failed in (1, 2, 3, 5, 6, 1000)] == [
        0.05, 0.1, 0.2, 0.8, 1.0, 1.0,
    ]  # fmt: skip
    assert {judge(unsent(), Purpose.PULL, failed).pause for failed in (1, 2, 9)} == {1.0}
    assert [judge(unsent(), Purpose.SLICE, failed).pause for failed in (1, 2, 4, 5, 100)] == [0.2, 0.4, 1.6, 2.0, 2.0]


def test_a_busy_broker_is_not_waited_for_by_a_message_that_goes_back():
    """A copy goes to the retry topic by another broker."""
    assert not judge(refused(ResponseCode.SYSTEM_BUSY), Purpose.GIVE_BACK).again


def test_patience_ends_with_its_time_and_begins_anew_with_every_success():
    patience = Patience(Purpose.LOOK_UP, 1.0, now=100.0)
    assert [patience.pause(unsent(), 100.0), patience.pause(unsent(), 100.2)] == [0.2, 0.4]
    with pytest.raises(ConnectionFailed):
        patience.pause(unsent(), 100.6)
    patience.renew(100.6)
    assert patience.pause(unsent(), 100.6) == 0.2


def test_patience_does_not_wait_where_waiting_cannot_help():
    with pytest.raises(BrokerError, match="code 16"):
        Patience(Purpose.COMMIT, 1.0, now=0.0).pause(refused(ResponseCode.NO_PERMISSION), 0.0)


@pytest.mark.parametrize("reason", Reason)
def test_error_of_an_answer_says_whether_another_try_can_help_as_the_refusal_did(reason):
    """Users ask `retriable`: what the broker's service meant comes through the code of its server."""
    error = refusal(CODE_OF[reason], "no", "h:1", "send")
    assert error.retriable == Refused(reason, "no").retriable
    assert pickle.loads(pickle.dumps(error)).retriable == error.retriable


@pytest.mark.parametrize("code", ResponseCode)
def test_whoever_asks_for_themselves_is_told_what_they_would_be_told_here(code):
    """One judgement: an error is retriable if a reader would ask again, or one who commits."""
    error = refusal(code, "no", "h:1", "pull")
    assert error.retriable == judge(error, Purpose.READ).again == judge(error, Purpose.COMMIT).again


def test_calls_raise_refusals():
    """Not bare errors: the judgement is in them."""
    for code in (ResponseCode.FLOW_CONTROL, ResponseCode.NO_PERMISSION):
        with pytest.raises(BrokerError) as raised:
            GetCluster().outcome(Command(code, remark="no"), "h:1")
        assert raised.value.retriable == (code is ResponseCode.FLOW_CONTROL)


# ---------------------------------------------------------------- access control

DENIED = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=me, and why"


@pytest.mark.parametrize("purpose", Purpose)
def test_what_access_control_refuses_is_final(purpose):
    """Although its code, SYSTEM_ERROR, is one after which a send goes elsewhere; and nothing was done."""
    error = refusal(ResponseCode.SYSTEM_ERROR, DENIED, "b:1", "send")
    assert isinstance(error, AccessDenied)
    judgement = judge(error, purpose)
    assert not judgement.again
    assert not judgement.maybe_done
    assert judgement.pause >= DENIED_SECONDS
    other = refusal(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException", "b:1", "send")
    assert not isinstance(other, AccessDenied)


def test_a_refusal_is_no_answer_where_its_code_is_one():
    """RocketMQ answers SYSTEM_ERROR for a group without members, and for one that may not be asked for."""
    call, me = ListMembers("g"), Credentials("me", Secret("12345678-secret"))
    assert outcome_of(call, Command(ResponseCode.SYSTEM_ERROR, remark="no members"), "b:1", me) == []
    with pytest.raises(AccessDenied) as caught:
        outcome_of(call, Command(ResponseCode.SYSTEM_ERROR, remark=DENIED), "b:1", me)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.account == "me"
    assert str(error) == (
        "b:1 refuses to list the members of g: AclException: Check signature failed for accessKey=me, and why. It was "
        "signed as me: check its secret key, and whether it was changed at the server"
    )
    assert "12345678" not in repr(error) + str(error.__dict__)


@pytest.mark.parametrize(
    ("remark", "is_waited_for"),
    [
        ("[NOT_LEADING]service not available now: member 2 leads", True),
        (
            "service not available now: broker-a takes no messages here: this broker is a slave (brokerId 1)",
            True,
        ),  # 0.1.0
        ("service not available now: No space left on device", False),
        ("service not available now: 1 broker of the in-sync set is here, and minInSyncReplicas is 2", False),
    ],
)
def test_another_leader_is_waited_for_where_a_refusal_says_that_its_broker_does_not_lead(remark, is_waited_for):
    """Waiting does not mend a full disk: that costs tries, and the user learns the reason soon."""
    assert judge(BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, remark), Purpose.SEND).away is is_waited_for
