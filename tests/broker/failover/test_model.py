"""Every interleaving of small groups, by the rules that brokers use; and the same with broken rules, which must be found."""

from __future__ import annotations

import pytest

from tests.broker.failover.model import Budget, Model, in_sync_group
from tests.broker.failover.search import walk


def test_a_broker_with_another_folder_does_not_count_for_the_one_that_it_had():
    """An empty mount point, say: the folder comes back, is whole and in the set, and would lead without what was acknowledged since."""
    steps = [
        "1 appends",
        "2 is killed",
        "2 gets an empty folder",
        "2 starts",
        "2 follows 1 from 0 on",
        "2 copies from 1",
        "2 copies from 1",
    ]
    model, first = Model(1), in_sync_group(2)
    budget = Budget(elections=2, appends=1, kills=1, powers=0, cuts=0, changes=1, wipes=1)
    walk(model, first, budget, steps)
    with pytest.raises(LookupError):
        walk(model, first, budget, [*steps, "1 acknowledges up to 2"])
