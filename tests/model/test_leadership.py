"""Where two logs with histories part, against logs that are written out."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from metaq.model.leadership import Epoch, Leadership, parting, rank

ENDS = st.integers(0, 30)


def epoch(number: int, start: int, leader: str = "") -> Epoch:
    return Epoch(number, start, leader or f"leader {number}", 0)


class Replica:
    """A log of records, each written as who wrote it, with its epochs."""

    def __init__(self) -> None:
        self.epochs: tuple[Epoch, ...] = ()
        self.log: list[str] = []

    def lead(self, leader: str, count: int) -> None:
        number = self.epochs[-1].number + 1 if self.epochs else 1
        self.epochs = (*self.epochs, Epoch(number, len(self.log), leader, 0))
        self.append(count)

    def append(self, count: int) -> None:
        writer = self.epochs[-1].leader if self.epochs else "the first"
        self.log += [f"{writer} {len(self.log) + at}" for at in range(count)]

    def copy(self, other: Replica, end: int) -> None:
        """Follow another: what does not fit goes, and the rest comes up to `end`."""
        place = parting(self.epochs, len(self.log), other.epochs, len(other.log))
        assert self.log[:place] == other.log[:place]
        self.log = self.log[:place] + other.log[place : max(place, end)]
        self.epochs = other.epochs


def same(one: Replica, other: Replica) -> int:
    pairs = zip(one.log, other.log, strict=False)
    return next((at for at, (own, their) in enumerate(pairs) if own != their), min(len(one.log), len(other.log)))


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(["lead", "append", "copy", "crash"]), ENDS),
        max_size=30,
    )
)
def test_logs_are_the_same_up_to_where_they_are_said_to_part(steps):
    """Whoever led, copied, or lost the end of its log: never less is cut off than differs."""
    replicas = [Replica(), Replica(), Replica()]
    for at, (one, other, what, number) in enumerate(steps):
        replica = replicas[one]
        if what == "lead":
            replica.lead(f"{one} at {at}", number)
        elif what == "append" and replica.epochs:  # only who leads appends, and it began an epoch with that
            if replica.epochs[-1].leader.startswith(f"{one} "):
                replica.append(number)
        elif what == "copy" and one != other:
            replica.copy(replicas[other], number)
        elif what == "crash":  # a power cut takes the end of the log; who leads on begins an epoch
            del replica.log[number:]
            replica.lead(f"{one} at {at}", 0)
    for own in replicas:
        for their in replicas:
            place = parting(own.epochs, len(own.log), their.epochs, len(their.log))
            assert place <= same(own, their)
            assert own is not their or place == len(own.log)


def test_a_log_that_lags_parts_nowhere():
    """It is a begin of the other one, which may have begun epochs since."""
    epochs = epoch(1, 0), epoch(2, 70)
    assert parting((), 50, (), 90) == 50
    assert parting(epochs[:1], 50, epochs, 90) == 50
    assert parting((), 50, epochs[1:], 90) == 50


def test_a_log_with_a_tail_parts_where_the_next_leader_began():
    """Also where the other log has grown beyond that tail."""
    assert parting((), 80, (epoch(1, 70),), 90) == 70
    assert parting((epoch(1, 0),), 80, (epoch(1, 0), epoch(2, 70)), 90) == 70


def test_two_leaders_of_one_number_part_where_the_first_of_them_began():
    """They were promoted beside each other."""
    assert parting((epoch(1, 60, "a"),), 100, (epoch(1, 70, "b"),), 100) == 60


def test_an_epoch_ends_where_the_first_of_those_behind_it_begins():
    """A slave that knew of an epoch whose begin it had not copied was promoted: it has less of the ones before, too."""
    promoted = epoch(1, 0), epoch(2, 70), epoch(3, 40)
    assert parting((epoch(1, 0),), 80, promoted, 100) == 40
    assert parting(promoted, 100, promoted[:2], 90) == 40


def test_the_newest_epoch_counts():
    """Nothing is kept for a broker that was never promoted."""
    assert Leadership().epoch == 0
    assert Leadership(epochs=(epoch(3, 0), epoch(7, 9))).epoch == 7


def test_the_newest_promotion_leads_however_often_the_other_has_crashed_since():
    """Then the newest epoch counts, and of two promotions beside each other the later one."""

    def leader(*epochs: tuple[int, int, int]) -> tuple[Epoch, ...]:
        return tuple(Epoch(number, 0, f"{number}{since}", since, term, term) for number, since, term in epochs)

    rising = [
        (),
        leader((1, 5, 0)),
        leader((1, 5, 0), (2, 6, 0)),
        leader((1, 7, 1)),
        leader((1, 8, 1)),
        leader((1, 7, 1), (2, 9, 1)),
        leader((1, 5, 0), (2, 8, 2)),
    ]
    ranks = [rank(epochs) for epochs in rising]
    assert all(lower < higher for lower, higher in itertools.pairwise(ranks))
