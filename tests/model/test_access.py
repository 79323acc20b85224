"""Who may what, as far as it is the same everywhere."""

from __future__ import annotations

import pytest

from metaq.errors import Reason, Refused
from metaq.model.access import Action, Caller, administered_locally, everybody

HERE, ELSEWHERE = Caller("127.0.0.1", loopback=True), Caller("10.0.0.9", loopback=False)


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("who", [HERE, ELSEWHERE])
def test_only_settings_are_kept_from_other_machines(who: Caller, action: Action) -> None:
    """And only where that is the rule; the refusal names the address."""
    everybody(who, action, "orders")
    if who is ELSEWHERE and action is Action.ADMINISTER:
        with pytest.raises(Refused, match=r"loopback addresses only, not from 10\.0\.0\.9") as caught:
            administered_locally(who, action, "orders")
        assert caught.value.reason is Reason.NO_PERMISSION
    else:
        administered_locally(who, action, "orders")
