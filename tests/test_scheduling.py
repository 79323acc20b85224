"""Tests go to workers in parts of their modules, and those of a group together."""

from __future__ import annotations

from collections import Counter

from tests.scheduling import AT_ONCE, parts


def test_a_part_is_some_tests_of_a_module() -> None:
    names = [f"a.py::test[{number}]" for number in range(AT_ONCE + 1)] + ["b.py::test"]
    found = parts(names)
    assert Counter(found.values()) == {"a.py 0": AT_ONCE, "a.py 1": 1, "b.py 0": 1}
    assert [found[name] for name in names[-2:]] == ["a.py 1", "b.py 0"]
