"""The in-sync set of a leader: what it acknowledges, up to where clients read, whom it waits for, and who may report to it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from metaq.broker.failover.in_sync import JOIN_SECONDS, NEAR_MS, TICKET_SECONDS, TICKETS_MAX, InSyncReplicas
from metaq.broker.log.acks import AckPolicy, Lack
from metaq.broker.replication.replicas import Replica
from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.model.failover import MEMBERS_MAX, GroupState, Place
from metaq.options import BrokerOptions

SESSION = 6.0
EPOCH = 5
ONE, TWO, THREE, FOUR = (Place(number, f"store{number}") for number in (1, 2, 3, 4))


class Leader:
    """Member 1 of a group, with a log that is as long as the test says."""

    def __init__(self, *, minimum: int = 1, timeout: int = 10_000) -> None:
        self.clock = FakeClock()
        self.tail = SimpleNamespace(end=0, read_end=0)
        options = BrokerOptions(
            min_in_sync_replicas=minimum, in_sync_timeout=timeout, failover="zookeeper", broker_id=1
        )
        store = SimpleNamespace(log=SimpleNamespace(tail=self.tail), state=SimpleNamespace(flushed=0))
        store_options = SimpleNamespace(flush_disk_type="ASYNC_FLUSH")
        environment = SimpleNamespace(options=options, clock=self.clock, store=store, store_options=store_options)
        self.set = InSyncReplicas(environment)
        self.acks = AckPolicy(environment, self.set)
        self.moved = 0
        """How often clients that wait were told to look again."""
        self.set.when_readable(self._moved)
        self.links: dict[int, Replica] = {}

    def _moved(self) -> None:
        self.moved += 1

    def begin(self, *in_sync: Place, epoch_start: int = 0, renewed: bool = True) -> GroupState:
        state = a_state(*in_sync)
        self.set.begin(1, state, epoch_start)
        self.set.alive({one.member for one in in_sync})
        if renewed:
            self.renew()
        return state

    def renew(self) -> None:
        self.set.renewed(self.clock.elapsed(), SESSION)

    def connect(self, place: Place, copied: int | None = None) -> Replica:
        """A connection of a follower, with a ticket, that has reported."""
        link = self.links[place.member] = self.set.connect(f"10.0.0.{place.member}:1")
        assert self.set.identify(link, self.set.ticket(place, EPOCH))
        if copied is not None:
            self.set.report(link, copied)
        return link

    def report(self, place: Place, copied: int) -> None:
        self.set.report(self.links[place.member], copied)

    def later(self, seconds: float) -> None:
        """Time passes with a lease that is renewed, in ticks of a tenth of a second."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.renew()
            self.set.note_end(self.clock.monotonic())
            self.set.tick()

    def append(self, end: int) -> None:
        self.tail.end = end


def a_state(*in_sync: Place, epoch: int = EPOCH, incarnation: str = "me") -> GroupState:
    return GroupState("history", epoch, 1, incarnation, in_sync)


@pytest.fixture
def leader() -> Leader:
    return Leader()


def without(state: GroupState, place: Place) -> GroupState:
    return a_state(*(one for one in state.in_sync if one != place))


# ---------------------------------------------------------------------- what is acknowledged


def test_before_it_leads_nothing_is_acknowledged(leader):
    leader.append(100)
    assert leader.set.required and leader.acks.promises
    assert (leader.set.copied, leader.set.enough, leader.set.in_doubt) == (0, False, True)
    assert "does not lead" in leader.set.lacking


def test_what_all_members_of_the_set_have_is_acknowledged(leader):
    leader.begin(ONE, TWO, THREE)
    leader.append(100)
    leader.connect(TWO, 80)
    assert leader.set.copied == 0  # member 3 has reported nothing in this epoch
    leader.connect(THREE, 50)
    assert leader.set.copied == 50
    leader.report(THREE, 100)
    assert leader.set.copied == 80
    leader.report(TWO, 100)
    assert leader.set.copied == 100
    leader.append(120)
    assert leader.set.copied == 100


def test_alone_in_the_set_it_acknowledges_what_it_has(leader):
    leader.begin(ONE)
    leader.append(100)
    assert leader.set.copied == 100
    assert leader.set.enough


def test_connections_without_a_ticket_count_for_nothing(leader):
    """Any slave may copy the log; RocketMQ's own do."""
    leader.begin(ONE, TWO)
    leader.append(100)
    stranger = leader.set.connect("10.0.0.9:1")
    leader.set.report(stranger, 100)
    assert leader.set.copied == 0
    leader.connect(TWO, 30)
    leader.set.report(stranger, 100)
    assert leader.set.copied == 30


def test_a_member_with_another_folder_does_not_count_for_the_one_that_was_in_sync(leader):
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(Place(2, "another"), 100)
    assert leader.set.copied == 0


def test_while_a_change_is_under_way_both_sets_are_waited_for(leader):
    """What becomes of it is not known until ZooKeeper has said so."""
    state = leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(TWO, 40)
    leader.connect(THREE, 10)
    assert leader.set.copied == 40
    leader.append(200)
    leader.set.attempt(a_state(ONE, TWO, THREE))
    leader.report(TWO, 200)
    assert leader.set.copied == 40
    leader.report(THREE, 150)
    assert leader.set.copied == 150
    leader.set.settle(state)  # it was not made
    assert leader.set.copied == 200


def test_without_a_member_that_may_still_be_in_the_set_nothing_goes_on(leader):
    """A change that removes it counts when it is made."""
    state = leader.begin(ONE, TWO)
    leader.append(100)
    leader.set.attempt(without(state, TWO))
    assert leader.set.copied == 0
    leader.set.settle(without(state, TWO))
    assert leader.set.copied == 100


def test_several_attempts_without_an_answer_all_count(leader):
    leader.begin(ONE)
    leader.append(100)
    assert leader.set.copied == 100
    leader.set.attempt(a_state(ONE, TWO))
    leader.set.attempt(a_state(ONE, THREE))
    assert leader.set.required_places == {TWO, THREE}
    leader.append(200)
    leader.connect(TWO, 200)
    assert leader.set.copied == 100  # nothing of what was acknowledged is taken back
    leader.connect(THREE, 180)
    assert leader.set.copied == 180


def test_what_was_acknowledged_stays_so_when_a_member_has_less(leader):
    """It has lost the end of its log, and reports that."""
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(TWO, 100)
    assert leader.set.copied == 100
    leader.connect(TWO, 40)
    assert leader.set.copied == 100
    leader.append(150)
    leader.report(TWO, 90)
    assert leader.set.copied == 100
    leader.report(TWO, 120)
    assert leader.set.copied == 120


def test_a_follower_that_comes_again_counts_by_what_it_has_reported_before(leader):
    """Its connection was cut, and its log is what it was; the old connection says nothing any more."""
    leader.begin(ONE, TWO)
    leader.append(100)
    old = leader.connect(TWO, 60)
    leader.set.disconnect(old)
    assert leader.set.copied == 60
    leader.connect(TWO)
    leader.append(200)
    leader.set.report(old, 200)
    assert leader.set.copied == 60


def test_who_waits_for_copies_is_told_when_the_set_has_them(leader):
    state = leader.begin(ONE, TWO)
    leader.append(100)
    told = []
    leader.set.when_copied(50, lambda: told.append(50))
    leader.set.when_copied(100, lambda: told.append(100))
    leader.connect(TWO, 60)
    assert told == [50]
    leader.set.attempt(without(state, TWO))
    assert told == [50]
    leader.set.settle(without(state, TWO))
    assert told == [50, 100]
    leader.set.when_copied(100, lambda: told.append("at once"))
    assert told[-1] == "at once"


# ---------------------------------------------------------------------- the lease


def test_without_a_lease_nothing_is_acknowledged_and_with_the_next_one_all_that_waited(leader):
    leader.begin(ONE, TWO)
    leader.later(SESSION)
    leader.append(100)
    leader.connect(TWO, 10)
    told = []
    leader.set.when_copied(100, lambda: told.append(True))
    leader.clock.advance(SESSION / 2)
    leader.report(TWO, 100)
    leader.set.tick()
    assert (leader.set.copied, told, leader.set.in_doubt, leader.set.enough) == (10, [], True, False)
    assert "ZooKeeper does not answer" in leader.set.lacking
    for _ in range(3):  # behind a gap one answer does not say enough
        leader.renew()
        leader.clock.advance(SESSION / 6)
    leader.renew()
    assert (leader.set.copied, told, leader.set.in_doubt, leader.set.enough) == (100, [True], False, True)


def test_a_reason_for_doubt_is_told_until_the_lease_is_renewed(leader):
    leader.begin(ONE)
    assert leader.set.enough
    leader.set.doubt("ZooKeeper was restored from an older backup")
    assert leader.set.lacking == "ZooKeeper was restored from an older backup"
    assert (leader.set.enough, leader.set.in_doubt) == (False, True)
    assert leader.set.group_role.doubt == "ZooKeeper was restored from an older backup"
    leader.later(SESSION)
    assert (leader.set.enough, leader.set.group_role.doubt) == (True, "")


def test_what_is_answered_in_doubt_says_so(leader):
    """And not that the message is stored, which clients would take for done."""
    leader.begin(ONE, TWO)
    leader.append(100)
    due = leader.acks.due()
    assert leader.acks.shortfall(due) is Lack.COPIED
    leader.clock.advance(SESSION)
    assert leader.acks.shortfall(due) is Lack.DOUBT
    leader.later(SESSION)
    assert leader.acks.shortfall(due) is Lack.COPIED
    leader.set.end()
    assert leader.acks.shortfall(due) is Lack.DOUBT


def test_after_the_end_nothing_is_acknowledged_whatever_is_reported(leader):
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(TWO, 60)
    leader.set.end()
    leader.report(TWO, 100)
    leader.renew()
    assert (leader.set.copied, leader.set.in_doubt, leader.set.required_places) == (60, True, frozenset())
    with pytest.raises(Refused, match="does not lead"):
        leader.set.ticket(TWO, EPOCH)


# ---------------------------------------------------------------------- up to where clients read


def test_clients_read_what_the_set_has_and_are_told_of_more(leader):
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.set.tick()
    assert leader.tail.read_end == 0
    before = leader.moved
    leader.connect(TWO, 60)
    assert (leader.tail.read_end, leader.moved) == (60, before + 1)
    leader.append(200)
    leader.report(TWO, 60)
    assert (leader.tail.read_end, leader.moved) == (60, before + 1)
    leader.report(TWO, 200)
    assert (leader.tail.read_end, leader.moved) == (200, before + 2)


def test_followers_that_say_nothing_hold_up_readers_for_as_long_as_they_are_in_the_set(leader):
    """Other than with a synchronous slave of a pair, which is passed over after slaveTimeout."""
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.later(9)
    assert leader.tail.read_end == 0


def test_in_doubt_reading_goes_on_up_to_what_was_acknowledged(leader):
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(TWO, 60)
    leader.clock.advance(SESSION)
    leader.report(TWO, 100)
    leader.set.tick()
    assert leader.tail.read_end == 60


def test_who_leads_no_more_lets_clients_read_what_it_has_acknowledged(leader):
    """Their offsets are there already: an end that goes back would have them begin anew."""
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(TWO, 60)
    leader.set.end()
    leader.set.tick()
    assert leader.tail.read_end == 60
    leader.set.was_told(50)
    leader.set.tick()
    assert leader.tail.read_end == 60
    leader.set.was_told(90)
    assert leader.tail.read_end == 90


def test_a_follower_lets_clients_read_what_it_was_told(leader):
    leader.append(100)
    leader.set.tick()
    assert leader.tail.read_end == 0
    before = leader.moved
    leader.set.was_told(40)
    assert (leader.tail.read_end, leader.moved) == (40, before + 1)
    leader.set.was_told(30)
    assert (leader.tail.read_end, leader.moved) == (40, before + 1)


def test_a_log_that_is_cut_is_read_up_to_its_end_at_most(leader):
    leader.append(100)
    leader.set.was_told(80)
    leader.append(70)
    history = leader.set.history
    leader.set.log_was_cut()
    leader.set.tick()
    assert (leader.tail.read_end, leader.set.history) == (70, history + 1)


def test_who_begins_to_lead_goes_on_with_what_it_was_told(leader):
    """Every member has that. What its followers have of the rest is seen by their reports."""
    leader.append(100)
    leader.set.was_told(40)
    leader.begin(ONE, TWO, epoch_start=100)
    assert (leader.set.copied, leader.tail.read_end) == (40, 40)
    leader.connect(TWO, 70)
    assert (leader.set.copied, leader.tail.read_end) == (70, 70)


def test_a_second_time_as_leader_does_not_go_by_what_was_reported_in_the_first(leader):
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(TWO, 100)
    leader.set.end()
    leader.append(200)
    leader.begin(ONE, TWO, epoch_start=200)
    assert leader.set.copied == 100
    leader.report(TWO, 200)  # the connection of the first time
    assert leader.set.copied == 100
    leader.connect(TWO, 150)
    assert leader.set.copied == 150


def test_followers_are_told_what_was_acknowledged_while_it_leads(leader):
    assert leader.set.told_end == -1
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(TWO, 60)
    assert leader.set.told_end == 60
    leader.set.end()
    assert leader.set.told_end == -1


# ---------------------------------------------------------------------- how many are there


@pytest.mark.parametrize(("minimum", "enough"), [(1, True), (2, True), (3, False)])
def test_sends_are_taken_while_the_minimum_is_here(minimum, enough):
    leader = Leader(minimum=minimum)
    leader.begin(ONE, TWO, THREE)
    leader.connect(TWO, 0)
    assert leader.set.enough is enough
    if not enough:
        assert "2 brokers of the in-sync set are here" in leader.set.lacking
        assert f"minInSyncReplicas is {minimum}" in leader.set.lacking
    leader.set.disconnect(leader.links[2])
    assert leader.set.enough is (minimum == 1)


def test_the_followers_of_a_new_leader_are_waited_for_by_who_sends():
    """They come within a moment. What lacks later than inSyncTimeout is told as it is."""
    leader = Leader(minimum=2)
    assert leader.set.lacks_for_now
    leader.begin(ONE, TWO)
    assert not leader.set.enough and leader.set.lacks_for_now
    leader.later(9.8)
    assert leader.set.lacks_for_now
    leader.later(0.4)
    assert not leader.set.enough and not leader.set.lacks_for_now
    leader.clock.advance(SESSION)
    assert leader.set.lacks_for_now  # in doubt


def test_who_is_not_in_the_set_does_not_make_it_enough():
    leader = Leader(minimum=2)
    leader.begin(ONE, TWO)
    leader.connect(THREE, 0)
    assert not leader.set.enough


# ---------------------------------------------------------------------- who leaves


def test_a_member_whose_session_is_over_leaves_at_once(leader):
    state = leader.begin(ONE, TWO, THREE)
    leader.connect(TWO, 0)
    leader.connect(THREE, 0)
    assert leader.set.wanted() is None
    leader.set.alive({1, 3})
    assert leader.set.wanted() == without(state, TWO)


def test_a_member_that_lags_for_in_sync_timeout_leaves(leader):
    state = leader.begin(ONE, TWO, THREE)
    for place in (TWO, THREE):
        leader.connect(place, 0)
    leader.append(100)
    leader.later(0.1)
    leader.report(THREE, 100)
    leader.later(9.8)
    assert leader.set.wanted() is None
    leader.later(0.4)
    assert leader.set.wanted() == without(state, TWO)


def test_one_that_lags_and_goes_on_stays(leader):
    """It counts how long ago the log was as long as its own."""
    leader.begin(ONE, TWO)
    leader.connect(TWO, 0)
    for second in range(30):
        leader.append(100 * (second + 1))
        leader.later(1)
        leader.report(TWO, max(0, 100 * (second - 5)))
    assert leader.set.wanted() is None


def test_one_that_is_away_or_never_comes_leaves_after_in_sync_timeout(leader):
    """Though its session lasts: it may be that only the leader cannot be reached."""
    state = leader.begin(ONE, TWO, THREE)
    leader.connect(TWO, 0)
    leader.later(5)
    leader.set.disconnect(leader.links[2])
    leader.later(4.9)
    assert leader.set.wanted() is None
    leader.later(0.2)
    assert leader.set.wanted() == without(state, THREE)
    leader.later(5)
    assert leader.set.wanted() == a_state(ONE)


def test_the_set_does_not_shrink_below_the_minimum():
    leader = Leader(minimum=2)
    leader.begin(ONE, TWO, THREE)
    leader.set.alive({1})
    wanted = leader.set.wanted()
    assert len(wanted.in_sync) == 2 and ONE in wanted.in_sync
    leader.set.settle(wanted)
    assert leader.set.wanted() is None
    leader.later(60)
    assert leader.set.wanted() is None


def test_no_second_change_is_wanted_while_one_is_under_way(leader):
    state = leader.begin(ONE, TWO, THREE)
    leader.set.alive({1})
    leader.set.attempt(leader.set.wanted())
    assert leader.set.wanted() is None
    leader.set.settle(state)
    assert leader.set.wanted() is not None


# ---------------------------------------------------------------------- who comes


def joining(leader: Leader, place: Place = TWO, copied: int = 100) -> None:
    leader.set.alive({1, 2, 3})
    leader.connect(place, copied)
    leader.set.tick()


def test_a_follower_that_has_caught_up_comes_into_the_set_and_is_waited_for_first(leader):
    leader.begin(ONE, epoch_start=90)
    leader.append(100)
    joining(leader)
    assert leader.set.required_places == {TWO}
    wanted = leader.set.wanted()
    assert wanted == a_state(ONE, TWO)
    leader.append(150)
    assert leader.set.copied == 100
    leader.report(TWO, 150)
    leader.set.attempt(wanted)
    leader.set.settle(wanted)
    leader.set.tick()
    assert leader.set.required_places == {TWO}
    assert leader.set.wanted() is None


def test_it_comes_only_with_all_that_was_acknowledged_without_it(leader):
    leader.begin(ONE)
    leader.append(100)
    joining(leader, copied=99)
    assert leader.set.required_places == {TWO}
    assert leader.set.wanted() is None
    leader.report(TWO, 100)
    assert leader.set.wanted() == a_state(ONE, TWO)


def test_it_comes_only_with_all_of_the_log_before_this_epoch(leader):
    """The leader before may have acknowledged any of that."""
    leader.append(100)
    leader.begin(ONE, epoch_start=100)
    joining(leader, copied=99)
    assert leader.set.required_places == frozenset()
    leader.report(TWO, 100)
    leader.set.tick()
    assert leader.set.required_places == {TWO}


@pytest.mark.parametrize("why", ["far behind", "no session", "gone", "no ticket"])
def test_who_is_not_there_or_not_near_is_not_waited_for(leader, why):
    leader.begin(ONE)
    leader.set.alive({1} if why == "no session" else {1, 2})
    if why == "no ticket":
        leader.set.report(leader.set.connect("10.0.0.2:1"), 0)
    else:
        leader.connect(TWO, 0)
    if why == "gone":
        leader.set.disconnect(leader.links[2])
    if why == "far behind":
        leader.append(100)
        leader.set.note_end(leader.clock.monotonic())
        leader.clock.advance(NEAR_MS / 1000 + 0.1)
        leader.renew()
    leader.set.tick()
    assert leader.set.required_places == frozenset()
    assert leader.set.wanted() is None


def test_one_that_does_not_catch_up_is_waited_for_no_longer(leader):
    leader.begin(ONE)
    leader.append(100)
    joining(leader, copied=99)
    leader.append(200)
    leader.later(JOIN_SECONDS - 0.1)
    assert leader.set.copied == 100
    leader.set.disconnect(leader.links[2])
    leader.later(0.3)
    assert (leader.set.required_places, leader.set.copied) == (frozenset(), 200)


def test_one_whose_coming_was_sent_is_waited_for_until_that_is_settled(leader):
    """It may be a member by now, and lead next."""
    state = leader.begin(ONE)
    leader.append(100)
    joining(leader)
    leader.set.attempt(leader.set.wanted())
    leader.append(200)
    leader.later(10 * JOIN_SECONDS)
    assert (leader.set.required_places, leader.set.copied) == ({TWO}, 100)
    leader.set.settle(state)
    leader.later(0.1)
    assert leader.set.required_places in (frozenset(), {TWO})
    assert leader.set.required_places == frozenset() or leader.set.wanted() == a_state(ONE, TWO)


def test_a_member_that_comes_with_another_folder_takes_its_place(leader):
    """The old folder is not in sync any more, which the set says."""
    state = leader.begin(ONE, TWO, THREE)
    leader.append(100)
    leader.connect(THREE, 100)
    new = Place(2, "another")
    joining(leader, new)
    assert leader.set.required_places == {TWO, THREE, new}
    assert leader.set.wanted().in_sync == (ONE, THREE, new)
    assert leader.set.copied == 0
    leader.set.attempt(leader.set.wanted())
    leader.set.settle(a_state(ONE, THREE, new))
    assert leader.set.copied == 100
    assert TWO in state.in_sync


def test_in_doubt_nobody_comes(leader):
    leader.begin(ONE)
    leader.clock.advance(SESSION)
    leader.append(100)
    joining(leader)
    assert leader.set.wanted() is None


# ---------------------------------------------------------------------- tickets


@pytest.mark.parametrize(
    ("place", "epoch", "why"),
    [
        (TWO, EPOCH - 1, "it knows epoch 4, and this is epoch 5"),
        (TWO, EPOCH + 1, "it knows epoch 6, and this is epoch 5"),
        (ONE, EPOCH, "member 1 is this broker: give each broker of the group a brokerId of its own"),
        (Place(0, "s"), EPOCH, f"members have numbers from 1 to {MEMBERS_MAX}"),
        (Place(MEMBERS_MAX + 1, "s"), EPOCH, f"members have numbers from 1 to {MEMBERS_MAX}"),
        (Place(2, ""), EPOCH, "its store has no token"),
        (Place(2, "x" * 65), EPOCH, "its store has no token"),
    ],
)
def test_a_ticket_is_for_members_that_know_this_epoch(leader, place, epoch, why):
    leader.begin(ONE, TWO)
    with pytest.raises(Refused, match=f"reports of member {place.member} do not count here: {why}"):
        leader.set.ticket(place, epoch)


def test_a_leader_whose_place_has_another_gives_no_ticket(leader):
    """ZooKeeper has it that the same broker, started again, leads."""
    leader.begin(ONE, TWO)
    leader.set.settle(a_state(ONE, TWO, incarnation="another"))
    with pytest.raises(Refused, match="this broker does not lead"):
        leader.set.ticket(TWO, EPOCH)


def test_a_ticket_is_good_once(leader):
    leader.begin(ONE, TWO)
    ticket = leader.set.ticket(TWO, EPOCH)
    first, second = leader.set.connect("a:1"), leader.set.connect("b:1")
    assert ticket > 0
    assert leader.set.identify(first, ticket)
    assert not leader.set.identify(second, ticket)
    assert not leader.set.identify(second, ticket + 1)
    leader.append(100)
    leader.set.report(second, 100)
    assert leader.set.copied == 0


def test_a_ticket_expires_and_ends_with_its_epoch(leader):
    leader.begin(ONE, TWO)
    link = leader.set.connect("a:1")
    late, old = leader.set.ticket(TWO, EPOCH), leader.set.ticket(TWO, EPOCH)
    leader.clock.advance(TICKET_SECONDS + 0.1)
    assert not leader.set.identify(link, late)
    leader.set.end()
    assert not leader.set.identify(link, old)
    leader.begin(ONE, TWO)
    old = leader.set.ticket(TWO, EPOCH)
    leader.set.begin(1, a_state(ONE, TWO, epoch=EPOCH + 1), 0)
    assert not leader.set.identify(link, old)


def test_so_many_tickets_are_kept_and_the_newest_are_good(leader):
    leader.begin(ONE, TWO)
    tickets = [leader.set.ticket(TWO, EPOCH) for _ in range(TICKETS_MAX + 10)]
    assert len(set(tickets)) == len(tickets)
    assert len(leader.set._tickets) == TICKETS_MAX
    link = leader.set.connect("a:1")
    assert not leader.set.identify(link, tickets[9])
    assert leader.set.identify(link, tickets[10])
    assert leader.set.identify(link, tickets[-1])


# ---------------------------------------------------------------------- what is told of it


def test_the_role_says_who_is_in_sync_and_how_far(leader):
    assert leader.set.group_role.member == 1
    assert leader.set.group_role.acknowledged == -1
    leader.begin(ONE, TWO)
    leader.append(100)
    leader.connect(TWO, 60)
    leader.connect(FOUR, 0)
    role = leader.set.group_role
    assert (role.member, role.in_sync, role.copied, role.acknowledged, role.doubt, role.minimum) == (
        1, (1, 2), {2: 60, 4: 0}, 60, "", 1,
    )  # fmt: skip
    assert 0 < role.lease_ms <= SESSION * 500
    leader.set.end()
    assert leader.set.group_role.in_sync == ()


def test_one_that_does_not_lead_says_why_it_does_not_follow_either(leader):
    """Until it leads."""
    leader.set.waiting = "waiting for member 2"
    assert (leader.set.group_role.waiting, leader.set.group_role.doubt) == ("waiting for member 2", "")
    leader.set.doubt("the state in ZooKeeper cannot be read")
    assert (leader.set.group_role.waiting, leader.set.group_role.doubt) == ("the state in ZooKeeper cannot be read", "")
    leader.begin(ONE)
    assert (leader.set.group_role.waiting, leader.set.group_role.doubt) == ("", "")
    leader.set.end()
    assert leader.set.group_role.waiting == ""


def test_who_has_reported_and_is_gone_cannot_be_handed_over_to(leader):
    """Without traffic nothing else tells that its process has just died."""
    leader.begin(ONE, TWO, THREE)
    leader.connect(TWO, 0)
    leader.connect(THREE)
    assert leader.set.present == {2}  # member 3 has reported nothing
    leader.set.disconnect(leader.links[2])
    assert (leader.set.present, leader.set.followers) == (set(), {2: 0})
