"""Which tests xdist hands to a worker at once: groups as they are, others some of a module at a time.

xdist's own `loadgroup` hands them over one by one, and goes through all that a worker has had for each: of thirteen thousand tests
that is twenty seconds of CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from xdist.scheduler import LoadGroupScheduling

AT_ONCE: Final = 16


def parts(names: Iterable[str]) -> dict[str, str]:
    """Test → what it goes with: the next tests of its module."""
    seen = Counter[str]()
    found = {}
    for name in names:
        module = name.partition("::")[0]
        found[name] = f"{module} {seen[module] // AT_ONCE}"
        seen[module] += 1
    return found


class Scheduling(LoadGroupScheduling):  # type: ignore[misc]
    """`--dist loadgroup` in parts."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._parts: dict[str, str] = {}

    def add_node_collection(self, node: Any, collection: list[str]) -> None:
        if not self._parts:  # workers have the same tests, or the run fails
            self._parts = parts(name for name in collection if super(Scheduling, self)._split_scope(name) == name)
        super().add_node_collection(node, collection)

    def _split_scope(self, nodeid: str) -> str:
        return self._parts.get(nodeid) or super()._split_scope(nodeid)
