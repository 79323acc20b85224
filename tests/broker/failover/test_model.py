"""Every interleaving of small groups, by the rules that brokers use; and the same with broken rules, which must be found."""

from __future__ import annotations

import pytest
from msgspec import structs

from metaq.broker.failover import protocol
from metaq.model import leadership
from tests.broker.failover import broken
from tests.broker.failover.model import Budget, Model, World, in_sync_group, no_group
from tests.broker.failover.search import search, walk, wander

LATER = (pytest.mark.all, pytest.mark.slow)
NOTHING = Budget(elections=1, appends=0, kills=0, powers=0, cuts=0, changes=0, hand_overs=0, wipes=0)


def budget(**given: int) -> Budget:
    return structs.replace(NOTHING, **given)


TWO, THREE = in_sync_group(2), in_sync_group(3)
TWO_AND_ONE = in_sync_group(3, members=2, records=1)
"""The third member is new."""
BOUNDS = {
    "two: killed and cut off": (Model(1), TWO, budget(elections=2, appends=1, kills=1, cuts=1, changes=1)),
    "two: killed twice": (Model(1), TWO, budget(elections=2, appends=1, kills=2, changes=1)),
    "two: told what is acknowledged": (Model(1, tells=True), TWO, budget(elections=2, appends=1, kills=1, changes=1)),
    "two: power and kill": (Model(1), in_sync_group(2, records=1), budget(elections=2, kills=1, powers=1, changes=1)),
    "two: power twice, minimum 2": (Model(2), in_sync_group(2, records=1), budget(elections=2, appends=1, powers=2)),
    "two: power twice": (Model(1, tells=True), in_sync_group(2, records=1), budget(elections=2, powers=2, changes=1)),
    "two: an empty folder": (Model(1), TWO, budget(elections=2, appends=1, kills=1, changes=1, wipes=1)),
    "two: handed over": (Model(1), TWO, budget(elections=2, appends=1, kills=1, changes=1, hand_overs=1)),
    "two: a group begins": (Model(1), no_group(2), budget(elections=2, appends=1, kills=1, changes=1)),
    "three: a new one": (Model(1), TWO_AND_ONE, budget(elections=2, kills=1, changes=1)),
    "three: killed, and the set changes": (Model(2), THREE, budget(elections=2, appends=1, kills=1, changes=1)),
    "three: power twice": (Model(2), in_sync_group(3, records=1), budget(powers=2)),
}
"""Which groups, and how often what may happen: all of it in half a minute."""
MORE = {
    "two: power and kill": (Model(1), TWO, budget(elections=2, appends=1, kills=1, powers=1, changes=1)),
    "two: killed twice and cut off": (Model(1), TWO, budget(elections=2, appends=1, kills=2, cuts=1, changes=1)),
    "two: cut off twice": (Model(1), TWO, budget(elections=2, appends=2, kills=1, cuts=2, changes=1)),
    "two: three elections": (Model(1), TWO, budget(elections=3, appends=2, kills=1, cuts=1, changes=1)),
    "two: power twice": (Model(1, tells=True), TWO, budget(elections=2, appends=1, powers=2, changes=2)),
    "two: handed over and cut off": (
        Model(1), TWO, budget(elections=2, appends=1, kills=1, cuts=1, changes=1, hand_overs=1),
    ),
    "two: an empty folder": (Model(1), TWO, budget(elections=2, appends=1, kills=2, changes=1, wipes=1)),
    "three: killed and cut off": (Model(2), THREE, budget(elections=2, appends=1, kills=1, cuts=1)),
}  # fmt: skip
"""Minutes."""


@pytest.mark.parametrize(
    ("model", "first", "most"),
    [
        *(pytest.param(*bound, id=name) for name, bound in BOUNDS.items()),
        *(pytest.param(*bound, id=f"{name}, more", marks=LATER) for name, bound in MORE.items()),
    ],
)
def test_every_promise_holds_in_every_state(model, first, most):
    found = search(model, first, most)
    assert not found.why, str(found)
    assert found.whole
    assert found.states > 1000, "this bound lets nothing happen"


def test_nothing_is_missed_by_taking_states_for_the_same():
    """What is reduced and what is not comes to the same acknowledged logs and states in ZooKeeper."""
    most = budget(elections=2, appends=1, kills=1, changes=1)

    def outcomes(*, reduced: bool) -> set[tuple[object, object]]:
        met = set[tuple[object, object]]()

        class Watched(Model):
            def check(self, world: World) -> None:
                super().check(world)
                met.add((world.state, world.acknowledged))

        assert not search(Watched(1, reduced=reduced), TWO, most).why
        return met

    assert outcomes(reduced=True) == outcomes(reduced=False)


WAYS = {
    "all": Budget(elections=4, appends=4, kills=2, powers=1, cuts=4, changes=4, hand_overs=2, wipes=1),
    "power": Budget(elections=5, appends=3, kills=1, powers=4, cuts=2, changes=3, hand_overs=1),
}


@pytest.mark.parametrize("walks", [100, pytest.param(3000, marks=LATER)])
@pytest.mark.parametrize("most", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("size", [2, 3])
def test_promises_hold_on_random_ways(size, most, walks):
    """Much more may happen here than in the search: it is too much to look at all of it."""
    found = wander(Model(size - 1, tells=True), in_sync_group(size, records=1), most, seed=size, walks=walks)
    assert not found.why, str(found)
    assert found.depth > 30


BROKEN_RULES = {
    "only what is known to be in ZooKeeper is waited for": (
        Model(1), in_sync_group(2, members=1), budget(appends=1, changes=1),
    ),
    "only what was sent to ZooKeeper is waited for": (Model(1), TWO, budget(appends=1, changes=1)),
    "outside the set": (Model(1), in_sync_group(2, members=1, records=1), budget(kills=1)),
    "not whole, and a whole one is away": (Model(2), in_sync_group(2, records=1), budget(kills=1, powers=1)),
    "the epoch is not raised": (Model(1), TWO, budget(kills=1)),
    "an empty folder is elected by its number": (Model(1), TWO, budget(kills=1, wipes=1)),
    "an empty folder reports by its number": (Model(1), TWO, budget(appends=1, kills=1, wipes=1)),
    "the end of a log as it was": (Model(2), in_sync_group(2, records=1), budget(powers=2)),
    "caught up with the leader before": (Model(1), in_sync_group(2, members=1), budget(appends=1, changes=1)),
    "caught up with what this leader has acknowledged": (Model(1), TWO_AND_ONE, budget(kills=1, changes=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_RULES)
def test_a_broken_rule_is_found(name, monkeypatch):
    model, first, most = BROKEN_RULES[name]
    assert not search(model, first, most).why
    for rule, wrong in broken.RULES[name].items():
        monkeypatch.setattr(protocol, rule, wrong)
    found = search(model, first, most)
    assert found.why, f"not in {found}"
    assert found.trace


def test_reports_of_an_old_epoch_are_found(monkeypatch):
    """Who leads once more, in its old process, and a follower that has heard of neither epoch since. The search begins in between."""
    # What is reduced has every follower hear of it: nothing else could become of it by the right rules.
    model, most = Model(3, reduced=False), budget(elections=2, appends=2, cuts=2)
    middle, left = walk(
        model, THREE, most,
        [
            "1 appends",
            "2 copies from 1",
            "the session of 1 ends",
            "3 sends epoch 2, leader 3.0, set {3, 2, 1}",
            "ZooKeeper takes epoch 2, leader 3.0, set {3, 2, 1}",
            "3 looks, and leads",
            "1 looks, and does not lead",
            "1 follows 3 from 1 on",
            "1 copies from 3",
            "the session of 3 ends",
        ],
    )  # fmt: skip
    assert not search(model, middle, left).why
    for rule, wrong in broken.RULES["reports of an old epoch"].items():
        monkeypatch.setattr(protocol, rule, wrong)
    assert search(model, middle, left).why


BROKEN_STEPS = {
    broken.GrowsAfter: (in_sync_group(2, members=1), 1, budget(appends=1, changes=1)),
    broken.ShrinksByItself: (TWO, 1, budget(appends=1, changes=1)),
    broken.GivesUp: (in_sync_group(2, members=1), 1, budget(appends=1, changes=1)),
    broken.ForgetsThatItIsNotWhole: (in_sync_group(2, records=1), 2, budget(kills=2, powers=1)),
    broken.KeepsWhatItWasTold: (in_sync_group(2, records=1), 1, budget(elections=2, kills=1, powers=1, changes=2)),
}


def test_random_ways_find_what_is_broken(monkeypatch):
    """That they find nothing by the right rules says something."""
    monkeypatch.setattr(
        protocol, "must_have", broken.RULES["only what was sent to ZooKeeper is waited for"]["must_have"]
    )
    assert wander(Model(1), THREE, Budget(), seed=1, walks=300).why


@pytest.mark.parametrize("kind", BROKEN_STEPS)
def test_a_broken_step_is_found(kind):
    first, minimum, most = BROKEN_STEPS[kind]
    assert search(kind(minimum, tells=kind is broken.KeepsWhatItWasTold), first, most).why


def test_a_cut_by_the_lengths_of_logs_is_found(monkeypatch):
    """Without epochs, that is."""
    monkeypatch.setattr(leadership, "parting", lambda _own, own_end, _others, other_end: min(own_end, other_end))
    assert search(Model(1), TWO, budget(appends=1, cuts=1)).why


def test_a_violation_is_told_with_its_steps(monkeypatch):
    monkeypatch.setattr(protocol, "elect", broken.elect_in_the_same_epoch)
    found = search(Model(1), TWO, budget(kills=1))
    assert str(found).endswith(
        "epoch 1 has two leaders: 1.0 and 2.0\n"
        "   1. 1 is killed\n"
        "   2. the session of 1 ends\n"
        "   3. 2 sends epoch 1, leader 2.0, set {2}\n"
        "   4. ZooKeeper takes epoch 1, leader 2.0, set {2}\n"
        "   5. 2 looks, and leads"
    )


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
    most = budget(elections=2, appends=1, kills=1, changes=1, wipes=1)
    walk(model, first, most, steps)
    with pytest.raises(LookupError):
        walk(model, first, most, [*steps, "1 acknowledges up to 2"])


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
    most = budget(elections=2, powers=2)
    world, left = walk(model, first, most, steps)
    sent = [label for label, _, _ in model.steps(world, left) if "sends" in label]
    assert sent == [], "whoever leads now does not know who has the longest log"
    walk(model, world, left, ["2 says that it is there", "2 sends epoch 2, leader 2.1, set {2, 1}"])
