"""docs/top.md says what `metaq top` has: its JSON, its keys, its sorts, its numbers; its picture is one."""

from __future__ import annotations

import json
import re
from xml.dom.minidom import parseString

from metaq.admin import Activity, BrokerStatus, GroupActivity, TopicActivity
from metaq.admin.figures import activity
from metaq.cli.cluster.top import activity_json
from metaq.cli.cluster.top_figures import GroupSort, TopicSort
from tests.support import ROOT

PAGE = (ROOT / "docs" / "top.md").read_text()
LOOK = Activity(
    1, 0.0, (BrokerStatus("C", "b", 0, "h:1"),), (TopicActivity("t", 1.0, 1.0, 1.0, 1, 1),),
    (GroupActivity("g", 1, 1, 1.0, 1, 1.0),), 1, (), (), {}, {},
)  # fmt: skip


def test_the_document_is_as_shown():
    """The same keys, in the same order."""
    [shown] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    page, ours = json.loads(shown), activity_json(LOOK, 0.1, TopicSort.STORED, GroupSort.LAG, None)
    assert list(page) == list(ours)
    for part in ("brokers", "topics", "groups"):
        assert list(page[part][0]) == list(ours[part][0])


def test_what_is_sorted_by_and_how_many_are_asked_about():
    for key, sorts in (("t", TopicSort), ("g", GroupSort)):
        [row] = re.findall(rf"^\| `{key}` \| (.*) \|$", PAGE, re.MULTILINE)
        for sort in sorts:
            assert sort.value in row
    assert f"up to {activity.FIRST_MAX} topics" in PAGE
    assert f"the {activity.LATER_MAX} whose figures" in PAGE


def test_the_picture_asks_for_nothing_elsewhere():
    """An SVG without fonts or images from other places, with the tables in it."""
    text = (ROOT / "docs" / "top.svg").read_text()
    assert parseString(text).documentElement.tagName == "svg"
    assert "url(http" not in text
    assert "href" not in text
    for word in ("orders", "billing", "stored/s", "growth/s"):
        assert word in text
