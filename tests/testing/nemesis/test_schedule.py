"""Schedules are values of their seed: the same again, bounded in time, with nothing that the cluster cannot have."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.testing.nemesis import ALWAYS, FAULTS, Topology, checked_faults, make_schedule
from tests.support import PATIENCE, environment

TOPOLOGIES = st.builds(Topology, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.sampled_from([1, 3]))
KINDS = st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, unique=True)


@given(st.integers(0, 10_000), TOPOLOGIES, KINDS, st.floats(1, 120))
def test_a_schedule_is_bounded_and_has_what_was_asked_for(seed, topology, kinds, seconds):
    """And the same arguments give the same one."""
    schedule = make_schedule(seed, topology, kinds, seconds)
    assert schedule == make_schedule(seed, topology, kinds, seconds)
    assert schedule.steps
    assert [step.begins for step in schedule.steps] == sorted(step.begins for step in schedule.steps)
    for step in schedule.steps:
        assert 0 < step.begins <= step.ends <= seconds + 0.001
        assert step.fault.kind in kinds
        who, _, number = step.fault.target.partition(" ")
        if who in {"leader", "follower"}:
            assert topology.replicas > 1
            assert int(number) < topology.brokers
        if who == "process":
            assert int(number) < topology.brokers * topology.replicas
        if who == "zookeeper":
            assert int(number) < topology.zookeepers
        if step.fault.kind == "partition":
            assert step.fault.way != "brokers" or topology.replicas > 1
            assert step.fault.way != "zookeeper" or topology.zookeepers


def test_another_process_draws_the_same():
    """Whatever the hash seed is."""
    program = "from metaq.testing.nemesis import *; print(make_schedule(7, Topology(2, 3, 2, 3), tuple(FAULTS), 60))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=True
    )
    assert done.stdout == f"{make_schedule(7, Topology(2, 3, 2, 3), tuple(FAULTS), 60)}\n"


def test_every_kind_and_every_link_is_drawn():
    """In some seed: no fault of the table is never made."""
    topology = Topology(1, 3, 1, 3)
    steps = [step for seed in range(60) for step in make_schedule(seed, topology, tuple(FAULTS), 60).steps]
    assert {step.fault.kind for step in steps} == set(FAULTS)
    partitions = {(step.fault.how, step.fault.direction) for step in steps if step.fault.kind == "partition"}
    assert partitions == {
        ("cut", "both"), ("half open", "both"), ("stall", "both"), ("stall", "to it"), ("stall", "from it"),
    }  # fmt: skip
    assert {step.fault.way for step in steps if step.fault.kind == "partition"} == {
        "clients", "brokers", "name servers", "zookeeper", "everything",
    }  # fmt: skip
    overlapping = [one for one, two in itertools.pairwise(steps) if one.begins < two.begins < one.ends]
    assert overlapping


def test_kinds_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="faults meteor: need some of kill, stop"):
        checked_faults(["kill", "meteor"], Topology())
    with pytest.raises(ConfigError, match="no ZooKeeper of its own"):
        checked_faults(["zookeeper"], Topology())
    with pytest.raises(ConfigError, match="are missing"):
        checked_faults([], Topology())
    with pytest.raises(ConfigError, match="need 1 s at least"):
        make_schedule(1, Topology(), ALWAYS, 0.5)
    assert checked_faults(["stop", "kill", "stop"], Topology()) == ("stop", "kill")


def test_a_schedule_is_printed_for_people():
    text = str(make_schedule(3, Topology(1, 2), ALWAYS, 5))
    assert text.startswith("seed 3, 5 s\n")
    assert all(" to " in line and " s: " in line for line in text.splitlines()[1:])
