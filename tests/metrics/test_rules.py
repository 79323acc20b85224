"""Rules and dashboard ask for what there is: names and labels are the table's, and the page says what to do at each alert."""

from __future__ import annotations

import json

import pytest

from tests.metrics.rules import (
    ALERTS,
    DASHBOARD,
    TARGET_LABELS,
    alerts,
    dashboard_queries,
    labels_named,
    recorded,
    rules,
    selectors,
    series,
)
from tests.support import ROOT
from tools import grafana

PAGE = (ROOT / "docs" / "monitoring.md").read_text()


def wrong_in(text):
    """Return what an expression asks for that nobody has."""
    known, found, wrong = series(), set(TARGET_LABELS), []
    for selector in selectors(text):
        name = selector.name
        if name in recorded():
            [rule] = [rule for rule in rules() if rule.get("record") == name]
            labels = labels_named(rule["expr"]) | TARGET_LABELS
        elif name == "up":
            labels = set(TARGET_LABELS)
        elif name in known:
            labels = set(known[name].labels) | TARGET_LABELS | ({"le"} if name.endswith("_bucket") else set())
        else:
            wrong.append(f"there is no metric {name}")
            continue
        wrong += [f"{name} has no label {one.name}" for one in selector.matchers.matchers if one.name not in labels]
        found |= labels
    return wrong + [f"nothing has the label {label}" for label in labels_named(text) - found - {""}]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert", rule.get("record")))
def test_each_rule_asks_for_what_there_is(rule):
    assert not wrong_in(rule["expr"])
    told = json.dumps(rule.get("annotations", {}))
    labels = set().union(
        TARGET_LABELS,
        *(
            series()[one.name].labels
            if one.name in series()
            else labels_named(next(r["expr"] for r in rules() if r.get("record") == one.name))
            for one in selectors(rule["expr"])
            if one.name != "up"
        ),
    )
    assert labels_named(told) <= labels


@pytest.mark.parametrize(("title", "query"), dashboard_queries())
def test_each_query_of_the_dashboard_asks_for_what_there_is(title, query):
    assert not wrong_in(query), title


def test_the_check_finds_what_is_wrong():
    assert wrong_in("metaq_nothing") == ["there is no metric metaq_nothing"]
    assert wrong_in('metaq_pulls_total{topic="a"}') == ["metaq_pulls_total has no label topic"]
    assert wrong_in("sum by (group) (metaq_pulls_total)") == ["nothing has the label group"]
    assert wrong_in("rate(metaq_pulls[5m])") == ["there is no metric metaq_pulls"]
    with pytest.raises(ValueError, match=r".+"):
        wrong_in("sum by (")


def test_the_dashboard_is_what_the_tool_makes():
    assert DASHBOARD.read_text() == grafana.text(), "run python -m tools.grafana > deploy/grafana/metaq.json"


def test_panels_do_not_lie_on_each_other():
    taken = set()
    for panel in grafana.dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_page_says_what_each_alert_means_and_what_to_do():
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    for name in names:
        [line] = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
        assert all(cell.strip() for cell in line.strip("|").split("|")), line
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]


def test_the_page_names_the_files():
    for path in (ALERTS, DASHBOARD, ALERTS.with_name("prometheus.yml")):
        assert str(path.relative_to(ROOT)) in PAGE
