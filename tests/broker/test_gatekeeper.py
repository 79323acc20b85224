"""Judgements are made once for all callers of a kind, and again when the rules change."""

from __future__ import annotations

import pytest

from metaq.broker import gatekeeper as module
from metaq.broker.gatekeeper import Gatekeeper
from metaq.errors import Reason, Refused
from metaq.model.access import Action, Caller, everybody

ANNA, BERT = Caller("10.0.0.1", False, "anna"), Caller("10.0.0.2", False, "bert")
HERE, THERE = Caller("127.0.0.1", loopback=True), Caller("10.0.0.9", loopback=False)


class Rules:
    def __init__(self) -> None:
        self.allowed = {"anna"}
        self.asked: list[Caller] = []

    def __call__(self, caller: Caller, action: Action, resource: str) -> None:
        self.asked.append(caller)
        if caller.identity not in self.allowed:
            raise Refused(Reason.NO_PERMISSION, f"{resource} is not for {caller.address}")


def refused(gatekeeper: Gatekeeper, caller: Caller, topic: str = "orders") -> bool:
    return not gatekeeper.allows(caller, Action.PUBLISH, topic)


def test_what_is_allowed_is_asked_once_for_a_kind_of_caller() -> None:
    """The address is not part of it; whether the connection is encrypted, or of this machine, is."""
    gatekeeper = Gatekeeper(rules := Rules())
    for _ in range(3):
        gatekeeper.check(ANNA, Action.PUBLISH, "orders")
        gatekeeper.check(Caller("10.9.9.9", False, "anna"), Action.PUBLISH, "orders")
    assert rules.asked == [ANNA]
    for other in (Caller("10.0.0.1", False, "anna", encrypted=True), Caller("127.0.0.1", True, "anna")):
        gatekeeper.check(other, Action.PUBLISH, "orders")
        assert rules.asked.pop() == other
    gatekeeper.check(ANNA, Action.SUBSCRIBE, "orders")
    gatekeeper.check(ANNA, Action.PUBLISH, "bills")
    assert len(rules.asked) == 3


def test_a_refusal_names_who_asked_each_time() -> None:
    """So it is not kept: its text has the address."""
    gatekeeper = Gatekeeper(Rules())
    for address in ("10.0.0.2", "10.0.0.3"):
        with pytest.raises(Refused, match=f"orders is not for {address}"):
            gatekeeper.check(Caller(address, False, "bert"), Action.PUBLISH, "orders")


def test_changed_rules_make_all_judgements_void_and_close_the_gates_of_who_watches() -> None:
    """Whoever watches finds the new rules in force already."""
    gatekeeper = Gatekeeper(rules := Rules())
    seen: list[tuple[bool, bool]] = []
    gatekeeper.watch(lambda: seen.append((refused(gatekeeper, ANNA), refused(gatekeeper, BERT))))
    assert (refused(gatekeeper, ANNA), refused(gatekeeper, BERT)) == (False, True)
    rules.allowed = {"bert"}
    changes = gatekeeper.changes
    gatekeeper.changed()
    assert seen == [(True, False)]
    assert gatekeeper.changes != changes


def test_without_rules_everybody_may_everything_but_reach_the_machine_from_elsewhere() -> None:
    """With rules, they alone say who may administer."""
    unguarded = Gatekeeper()
    assert unguarded.unguarded
    assert unguarded.trusts(THERE)
    unguarded.check(THERE, Action.ADMINISTER, "orders")
    unguarded.check_administration(HERE, "the configuration")
    with pytest.raises(Refused):
        unguarded.check_administration(THERE, "the configuration")
    Gatekeeper(administration=everybody).check_administration(THERE, "the configuration")
    guarded = Gatekeeper(Rules(), trusted=lambda caller: caller.identity == "root")
    guarded.check_administration(ANNA, "the configuration")
    with pytest.raises(Refused):
        guarded.check_administration(HERE, "the configuration")
    assert not guarded.trusts(ANNA)
    assert guarded.trusts(Caller("10.0.0.1", False, "root"))
    assert not Gatekeeper(Rules()).trusts(ANNA)


def test_made_up_names_do_not_fill_the_memory(monkeypatch) -> None:
    """Beyond the limit all is asked anew."""
    monkeypatch.setattr(module, "JUDGEMENTS_MAX", 10)
    gatekeeper = Gatekeeper(rules := Rules())
    for number in range(100):
        gatekeeper.check(ANNA, Action.PUBLISH, f"topic{number}")
        assert len(gatekeeper._allowed) <= 10
    assert len(rules.asked) == 100
