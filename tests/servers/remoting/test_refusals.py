"""Why a service refuses, in the codes of the remoting protocol."""

from __future__ import annotations

import pytest

from metaq.errors import Reason, Refused
from metaq.servers.remoting.dispatch import CODE_OF, remark_of


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_code_that_is_not_success(reason: Reason) -> None:
    """A reason without one would be a request without an answer."""
    assert CODE_OF[reason] > 0


@pytest.mark.parametrize(
    ("reason", "remark"),
    [
        (Reason.THROTTLED, "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: 9 bytes wait"),
        (Reason.NOT_STORED, "service not available now: 9 bytes wait"),
        (Reason.ILLEGAL_MESSAGE, "the message is illegal: 9 bytes wait"),
        (Reason.BUSY, "9 bytes wait"),
    ],
)
def test_remarks_begin_as_those_of_rocketmq_where_users_look_for_it(reason: Reason, remark: str) -> None:
    """Services know nothing of these words."""
    assert remark_of(Refused(reason, "9 bytes wait")) == remark
