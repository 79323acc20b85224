"""Each checker passes a history that keeps its promise, and finds each way of breaking it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metaq.testing.checking import (
    Committed,
    EndedByItself,
    GroupAt,
    Held,
    LeaderSeen,
    Observed,
    Place,
    Promises,
    QueueHolds,
    SendBegun,
    SendEnded,
    Trouble,
    judge,
    report,
)
from tests.testing.checking.histories import GROUP, QUEUES, Model, usual

PROMISES = Promises(groups=(GROUP,))
END = 99.0


def found(history, promises=PROMISES):
    """Names of the checks that a history does not pass."""
    return {violation.check for violation in judge(sorted(history, key=lambda event: event.at), promises).violations}


def without(history, gone):
    return [event for event in history if not gone(event)]


def changed(history, chosen, **fields):
    """The history with these fields of the events that are chosen; at least one is."""
    assert any(map(chosen, history))
    return [structs.replace(event, **fields) if chosen(event) else event for event in history]


def is_held(key, source=None):
    return lambda event: isinstance(event, Held) and event.key == key and source in {None, event.source}


def is_sent(key, kind=SendBegun):
    """Chooses the beginning or the end of a key's send, in the usual history."""
    ops = {event.op for event in usual() if isinstance(event, SendBegun) and key in event.keys}
    return lambda event: isinstance(event, kind) and event.op in ops


def test_a_history_that_keeps_every_promise_passes():
    """Also the counts are those of what was done."""
    verdict = judge(usual(), PROMISES)
    assert verdict.violations == ()
    assert verdict.counts == {
        "acked": 8, "ambiguous": 2, "refused": 3, "atomic": 2, "stored": 9, "seen": 16, "epochs": 1, "troubles": 0,
    }  # fmt: skip


def test_an_empty_history_shows_nothing_of_groups():
    """A run that has done nothing must not pass for one that has."""
    assert found([]) == {"is whole"}


# ---------------------------------------------------------------------- acked is kept


def test_an_acked_message_that_is_nowhere_is_found():
    history = without(usual(), is_held("a1"))
    history = changed(history, lambda event: isinstance(event, QueueHolds) and event.queue == QUEUES[1], end=1)
    assert "acked is kept" in found(history)


def test_an_acked_message_elsewhere_than_told_is_found():
    history = changed(usual(), is_sent("a0", SendEnded), places=(Place(QUEUES[0], 4),))
    assert found(history) >= {"acked is kept"}


def test_an_acked_message_in_place_of_another_is_found():
    history = changed(usual(), is_held("a0"), key="a2")
    assert "acked is kept" in found(history)


def test_what_was_acked_without_a_promise_may_be_gone():
    """A status that the promises leave out; it is still nobody else's place."""
    model = Model()
    model.send("a0")
    model.send("a1", status="SLAVE_NOT_AVAILABLE")
    del model.queues[0][1]
    history = model.finish()
    assert found(history) == {"acked is kept"}
    assert found(history, structs.replace(PROMISES, kept_statuses=frozenset({"SEND_OK"}))) == set()


def test_what_retention_has_taken_is_not_lost():
    history = [event for event in usual() if not (isinstance(event, Held) and event.place == Place(QUEUES[0], 0))]
    history = changed(history, lambda event: isinstance(event, QueueHolds) and event.queue == QUEUES[0], begin=1)
    assert found(history) == set()


def test_an_acked_send_without_places_counts_too():
    history = changed(usual(), is_sent("a1", SendEnded), places=())
    assert found(history) == set()
    gone = without(history, is_held("a1"))
    gone = changed(gone, lambda event: isinstance(event, Held) and event.key == "x1", place=Place(QUEUES[1], 0))
    assert "acked is kept" in found(gone)


# ---------------------------------------------------------------------- refused is absent, not too often


def test_a_refused_message_that_is_there_is_found():
    model = Model()
    model.send("r0", outcome="refused", stored=True)
    assert found(model.finish()) == {"refused is absent"}


def test_a_refused_message_that_was_only_seen_is_found():
    history = [*usual(), Observed(END, "r9", Place(QUEUES[0], 99), "r0")]
    assert "refused is absent" in found(history)


def test_a_key_that_was_refused_and_then_acked_may_be_there():
    model = Model()
    model.send("a0", outcome="refused")
    model.send("a0")
    assert found(model.finish()) == set()


def test_more_copies_than_tries_are_found():
    model = Model()
    model.send("a0")
    model._store("a0", 0)
    history = model.finish()
    assert found(history) == {"not too often"}
    assert found(changed(history, lambda event: isinstance(event, SendBegun), copies_max=2)) == set()


def test_a_message_that_nobody_sent_is_found():
    model = Model()
    model._store("ghost", 0)
    assert found(model.finish()) == {"not too often"}
    assert found([*usual(), Observed(END, "r9", Place("x@b:0", 0), "ghost")]) >= {"not too often"}


# ---------------------------------------------------------------------- in order


def test_two_sends_one_after_the_other_that_lie_the_other_way_round_are_found():
    model = Model()
    model.send("a0")
    model.send("a1")
    model.queues[0].reverse()
    history = model.finish()
    ends = [event for event in history if isinstance(event, SendEnded)]
    places = {ends[0].op: (Place(QUEUES[0], 1),), ends[1].op: (Place(QUEUES[0], 0),)}
    told = [
        structs.replace(event, places=places[event.op]) if isinstance(event, SendEnded) else event for event in history
    ]
    assert found(told) == {"in order"}


def test_sends_beside_each_other_may_lie_in_any_order():
    """Nobody was told of the first when the second began."""
    place = [Place(QUEUES[0], at) for at in range(2)]
    sends = [
        SendBegun(1.0, "p", 1, ("a0",)), SendBegun(1.1, "q", 2, ("a1",)),
        SendEnded(1.2, "p", 1, "acked", (place[1],), "SEND_OK"), SendEnded(1.3, "q", 2, "acked", (place[0],), "SEND_OK"),
    ]  # fmt: skip
    ends = [
        QueueHolds(2.0, QUEUES[0], 0, 2), Held(2.0, place[0], "a1"), Held(2.0, place[1], "a0"),
    ]  # fmt: skip
    assert found([*sends, *ends], Promises()) == set()
    later = [structs.replace(sends[1], at=1.25) if event is sends[1] else event for event in sends]
    assert found([*later, *ends], Promises()) == {"in order"}


def test_a_batch_that_is_torn_apart_is_found():
    model = Model()
    model.send("a0")
    model.batch(["b0", "b1"])
    model.queues[0][:] = ["b0", "a0", "b1"]
    places = {"a0": (1,), "b0": (0, 2)}
    history = model.finish()
    names = {event.op: event.keys[0] for event in history if isinstance(event, SendBegun)}
    told = [
        structs.replace(event, places=tuple(Place(QUEUES[0], at) for at in places[names[event.op]]))
        if isinstance(event, SendEnded)
        else event
        for event in history
    ]
    assert found(told) == {"in order"}


# ---------------------------------------------------------------------- all or none


def test_half_of_an_atomic_send_is_found():
    for outcome in ("acked", "ambiguous", "refused"):
        model = Model()
        model.atomic(["x0", "x1"], outcome=outcome)
        del model.queues[1]
        assert "all or none" in found(model.finish()), outcome


def test_an_atomic_send_that_is_there_twice_or_was_not_to_be_there_is_found():
    model = Model()
    model.atomic(["x0"], outcome="ambiguous")
    model._store("x0", 0)
    assert found(model.finish()) >= {"all or none"}
    model = Model()
    model.atomic(["x0", "x1"], outcome="refused")
    assert found(model.finish()) >= {"all or none"}
    model = Model()
    model.atomic(["x0", "x1"], stored=False)
    assert found(model.finish()) >= {"all or none"}


def test_an_ambiguous_atomic_send_may_be_there_or_not():
    for stored in (False, True):
        model = Model()
        model.atomic(["x0", "x1"], outcome="ambiguous", stored=stored)
        assert found(model.finish()) == set()


def test_an_atomic_send_with_others_between_its_messages_is_found():
    model = Model()
    model.atomic(["x0", "x1", "x2"])
    model.send("a0")
    model.queues[0][:] = ["x0", "a0", "x2"]
    history = model.finish()
    assert "all or none" in found(history)


# ---------------------------------------------------------------------- queues


def test_two_readers_that_see_different_messages_at_one_place_are_found():
    history = [*usual(), Observed(END, "r9", Place(QUEUES[0], 0), "a2")]
    assert "one order" in found(history)


def test_a_reader_that_jumps_or_goes_back_is_found():
    places = dict(enumerate(["a0", "b0", "b1"]))
    for offsets in ((0, 2), (1, 0), (1, 1)):
        history = [
            *usual(),
            *(Observed(END + at, "r9", Place(QUEUES[0], one), places[one]) for at, one in enumerate(offsets)),
        ]
        assert found(history) == {"one order"}, offsets


def test_an_orderly_group_may_get_again_what_it_had_and_not_jump():
    def history(*offsets):
        keys = ["a0", "b0", "b1"]
        return [
            *usual(),
            *(
                Observed(END + at, f"c{at}", Place(QUEUES[0], one), keys[one], "o", orderly=True)
                for at, one in enumerate(offsets)
            ),
        ]

    assert found(history(0, 1, 0, 1, 2)) == set()
    assert found(history(0, 2)) == {"one order"}


def test_a_message_that_vanishes_after_it_was_read_is_found():
    model = Model()
    model.send("a0")
    model.unanswered("m0", stored=True)
    model.read("r1")
    model.queues[0].pop()
    history = model.finish()
    assert found(history) == {"reads stay"}
    assert found(history, structs.replace(PROMISES, reads_stay=False)) == set()


def test_a_replica_that_has_something_else_or_less_is_found():
    history = usual()
    assert found(changed(history, is_held("a1", "b/1"), key="m1")) == {"replicas are equal"}
    assert found(without(history, is_held("a2", "b/0"))) == {"replicas are equal"}
    more = [*history, Held(END, Place(QUEUES[0], 99), "m1", "b/1")]
    assert found(more) == {"replicas are equal"}


def test_a_history_without_its_end_is_found():
    assert found(without(usual(), lambda event: isinstance(event, QueueHolds))) >= {"is whole"}
    assert found(without(usual(), lambda event: isinstance(event, GroupAt))) >= {"is whole"}
    assert found(without(usual(), is_sent("a1"))) >= {"is whole"}
    assert found(changed(usual(), lambda event: isinstance(event, QueueHolds), end=100)) >= {"is whole"}
    assert found(changed(usual(), lambda event: isinstance(event, QueueHolds), end=1)) >= {"is whole"}


# ---------------------------------------------------------------------- groups


def test_a_group_that_has_not_got_a_message_is_found():
    history = without(usual(), lambda event: isinstance(event, Observed) and event.group and event.key == "b0")
    assert found(history) == {"at least once"}


def test_progress_behind_what_was_saved_is_found():
    history = changed(usual(), lambda event: isinstance(event, GroupAt), place=Place(QUEUES[0], 1))
    assert found(history) == {"progress is true"}


def test_progress_that_the_broker_has_forgotten_is_found():
    def gone(event):
        return isinstance(event, GroupAt) and event.place.queue == QUEUES[1]

    assert found(without(usual(), gone)) == {"progress is true"}


def test_progress_past_the_end_is_found():
    for kind in (GroupAt, Committed):
        history = changed(usual(), lambda event, kind=kind: isinstance(event, kind), place=Place(QUEUES[0], 77))
        assert "progress is true" in found(history), kind


def test_progress_past_what_the_group_has_got_is_found():
    """It was saved before the message was handed out."""
    history = [*usual(), Committed(0.0001, "c", GROUP, Place(QUEUES[0], 3))]
    assert found(history) == {"progress is true"}


# ---------------------------------------------------------------------- servers


def test_two_leaders_of_an_epoch_are_found():
    history = [*usual(), LeaderSeen(END, "b", 1, "broker-1", "broker-1")]
    assert found(history) == {"one leader"}
    assert found([*usual(), LeaderSeen(END, "b", 2, "broker-1", "broker-1")]) == set()
    assert found([*usual(), LeaderSeen(END, "other", 1, "broker-1", "broker-1")]) == set()
    assert found([*usual(), LeaderSeen(END, "b", 1, "broker-1", "zookeeper")]) == {"one leader"}


def test_epochs_of_the_node_that_run_backwards_are_found():
    def seen(at, epoch, history="h"):
        return LeaderSeen(END + at, "b", epoch, f"broker-{epoch}", "zookeeper", history)

    assert found([*usual(), seen(0, 4), seen(1, 5)]) == set()
    assert found([*usual(), seen(0, 5), seen(1, 4)]) == {"one leader"}
    assert found([*usual(), seen(0, 4), seen(1, 5, "other")]) == {"one leader"}


def test_a_server_that_ended_by_itself_is_found():
    assert found([*usual(), EndedByItself(END, "broker-0", "exit code 70")]) == {"none ended"}


# ---------------------------------------------------------------------- anything

KEYS = st.integers(0, 10_000)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.sampled_from(["acked", "ambiguous", "refused"]), st.booleans()),
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(1, 4), st.just(None)),
        st.tuples(st.just("atomic"), st.integers(1, 4), st.sampled_from(["acked", "ambiguous", "refused"]), st.booleans()),
        st.tuples(st.just("read"), st.booleans(), st.just(None), st.just(None)),
    ),
    max_size=25,
)  # fmt: skip


def run(steps):
    model, number = Model(), 0

    def keys(count):
        nonlocal number
        number += count
        return [f"k{one}" for one in range(number - count, number)]

    for at, (kind, one, two, three) in enumerate(steps):
        if kind == "send":
            model.send(*keys(1), one, outcome=two, stored=three and two == "ambiguous")
        elif kind == "batch":
            model.batch(keys(two), one)
        elif kind == "atomic":
            model.atomic(keys(one), outcome=two, stored=two == "acked" or (two == "ambiguous" and three))
        else:
            model.read(f"r{at}", "live" if one else "", orderly=one)
    return model.finish()


@given(STEPS)
def test_whatever_a_true_broker_does_passes(steps):
    assert judge(run(steps), PROMISES).violations == ()


@given(STEPS, st.data())
def test_any_acked_message_that_is_taken_away_is_missed(steps, data):
    """Whichever it is, and whatever else happens; the others move up, as in a log that was cut off."""
    history = run(steps)
    acked = [
        (event.places[0], event)
        for event in history
        if isinstance(event, SendEnded) and event.outcome == "acked" and event.places
    ]
    if not acked:
        return
    place, _ = data.draw(st.sampled_from(acked))
    left = [
        event
        for event in history
        if not (isinstance(event, Held) and event.place.queue == place.queue and event.place.offset >= place.offset)
    ]
    left = changed(left, lambda event: isinstance(event, QueueHolds) and event.queue == place.queue, end=place.offset)
    assert "acked is kept" in found(left)


@given(STEPS, st.data())
def test_any_two_messages_that_change_places_are_noticed(steps, data):
    history = run(steps)
    held = [event for event in history if isinstance(event, Held) and not event.source]
    acked = {place for event in history if isinstance(event, SendEnded) for place in event.places}
    if len(held) < 2:
        return
    one, other = data.draw(st.permutations(held))[:2]
    swapped = [
        structs.replace(event, key=other.key if event is one else one.key) if event in {one, other} else event
        for event in history
    ]
    missed = found(swapped)
    assert "replicas are equal" in missed
    assert {one.place, other.place}.isdisjoint(acked) or "acked is kept" in missed


# ---------------------------------------------------------------------- the report


def test_the_report_shows_the_first_violation_with_what_was_around_it():
    history = without(usual(), is_held("a2"))
    history.insert(0, Trouble(0.001, "kill broker-0"))
    history = changed(history, lambda event: isinstance(event, QueueHolds) and event.queue == QUEUES[0], end=6)
    verdict = judge(history, PROMISES)
    text = report(verdict, history)
    assert not verdict.ok
    assert "a2 of p was acknowledged at 6 of t@b:0, SEND_OK, and it is nowhere" in text
    for line in ("p sends a2 to t@b:0", "is acked: 6 of t@b:0, SEND_OK", "kill broker-0"):
        assert line in text
    assert "more: " in text, "the group has got it, and it has vanished"


def test_the_report_of_a_good_run_says_what_was_done():
    assert report(judge(usual(), PROMISES), usual()).startswith("nothing found; 8 acked, 2 ambiguous, 3 refused")
