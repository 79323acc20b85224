"""Long lists: searched, sorted and cut by the server."""

from __future__ import annotations

import pytest
from msgspec import Struct

from metaq.dashboard.listing import ROWS_MAX, ListQuery, listing
from metaq.dashboard.page import query_of
from metaq.errors import BadRequest


class Row(Struct, frozen=True):
    name: str
    figure: float | None


ROWS = [Row(f"topic-{number:03}", None if number % 10 == 0 else number % 7) for number in range(120)]
KEYS = {"name": lambda row: row.name, "figure": lambda row: row.figure}


def shown(usual: str = "name", **query):
    return listing(ROWS, ListQuery(**query), KEYS, usual, lambda row: row.name)


def test_a_list_is_cut_into_pages():
    found = shown(page=3)
    assert [row.name for row in found.rows][:2] == ["topic-100", "topic-101"]
    assert (found.total, found.found, found.page, found.pages, found.first) == (120, 120, 3, 3, 101)


def test_a_page_behind_the_last_is_the_last():
    assert shown(page=1_000_000).page == 3


def test_the_search_looks_at_names_whatever_their_case():
    found = shown(q=" TOPIC-00 ")
    assert (found.found, found.total, found.q) == (10, 120, "TOPIC-00")
    assert shown(q="nowhere").rows == []
    assert shown(q="nowhere").first == 0


def test_what_is_not_known_comes_last_either_way_and_equals_are_in_the_order_of_names():
    down, up = shown(sort="-figure", rows=120).rows, shown(sort="figure", rows=120).rows
    assert [row.figure for row in down][:3] == [6, 6, 6]
    assert [row.figure for row in up][:3] == [0, 0, 0]
    assert [row.figure for row in down][-12:] == [row.figure for row in up][-12:] == [None] * 12
    assert [row.name for row in up][:2] == ["topic-007", "topic-014"]


def test_a_column_that_is_none_is_refused():
    with pytest.raises(BadRequest, match="not sorted by 'colour'; sorts are name, figure"):
        shown(sort="-colour")


@pytest.mark.parametrize(
    "params", [{"page": "0"}, {"page": "x"}, {"rows": str(ROWS_MAX + 1)}, {"colour": "red"}, {"page": "9" * 400}]
)
def test_wrong_parameters_are_refused(params):
    with pytest.raises(BadRequest, match="a parameter is wrong"):
        query_of(params, ListQuery)


def test_the_format_is_no_parameter_of_a_page():
    assert query_of({"format": "json", "q": "a"}, ListQuery).q == "a"
