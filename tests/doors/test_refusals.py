"""Why a service refuses, in the codes of the remoting protocol."""

from __future__ import annotations

import pytest

from metaq.doors.refusals import CODE_OF
from metaq.errors import Reason


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_code_that_is_not_success(reason: Reason) -> None:
    """A reason without one would be a request without an answer."""
    assert CODE_OF[reason] > 0
