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


def test_a_log_that_is_copied_again_is_as_long_as_it_is_and_not_as_it_was():
    """None is whole, and the longest log is to lead: by what it was when that broker came, another one would, without what it has."""
    steps = [
        "2 loses its power, and its log from 0 on",
        "2 starts",
        "2 says that it is there",
        "2 follows 1 from 0 on",
        "2 copies from 1",
        "1 loses its power, and its log from 0 on",
        "1 starts",
        "1 says that it is there",
    ]
    model, first = Model(2), in_sync_group(2, records=1)
    budget = Budget(elections=2, appends=0, kills=0, powers=2, cuts=0, changes=0)
    world, left = walk(model, first, budget, steps)
    sent = [label for label, _, _ in model.steps(world, left) if "sends" in label]
    assert sent == [], "whoever leads now does not know who has the longest log"
    walk(model, world, left, ["2 says that it is there", "2 sends epoch 2, leader 2.1, set {2, 1}"])
