"""Where our text door answers otherwise than MetaQ 1.4.6.2, on purpose: scenario, answer, what ours says, and why.

Users read the same in docs/metaq1.md.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    ours: str
    """The answer of ours in place of the original's."""
    why: str


DIFFERENCES: dict[str, dict[int, Difference]] = {}
"""Scenario → place among its answers → difference."""
EVERYWHERE = {"'0.1'": "'{version}'"}
"""What is said in many places: the published jar has no build properties, so its `version` is 0.1; ours is our own."""
