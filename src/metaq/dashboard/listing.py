"""Long lists, of which the server shows a part: searched, sorted, cut into pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

from msgspec import Meta, Struct

from metaq.errors import BadRequest

T = TypeVar("T")
U = TypeVar("U")

ROWS_MAX: Final = 500
ROWS_DEFAULT: Final = 50


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a page with a list. `q`: text in the name. `sort`: key of a column, with `-` the largest first."""

    q: str = ""
    sort: str = ""
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    rows: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = ROWS_DEFAULT


class Listing(Struct, Generic[T], frozen=True):
    """A part of a list. `total`: before the search; `found`: after it; `page` of `pages`, `first`: number of its first row, from 1."""

    rows: list[T]
    total: int
    found: int
    page: int
    pages: int
    first: int
    sort: str
    q: str

    def of(self, rows: list[U]) -> Listing[U]:
        """Return the same part with rows made of these: what only those that are shown need."""
        return Listing(rows, self.total, self.found, self.page, self.pages, self.first, self.sort, self.q)


Key = Callable[[Any], Any]


def listing(
    rows: Iterable[T], query: ListQuery, keys: Mapping[str, Key], usual: str, name: Callable[[T], str]
) -> Listing[T]:
    """Return the part of a list that is asked for. What a row has not (None) comes last, either way.

    Args:
        keys: column → what it is sorted by.
        usual: sort of a page that is asked for without one.
        name: what the search looks at; rows that are equal otherwise are in its order.
    Raises: BadRequest: there is no such column.
    """
    everything = list(rows)
    wanted = query.q.strip().lower()
    found = [row for row in everything if wanted in name(row).lower()] if wanted else everything
    sort = query.sort or usual
    column = sort.removeprefix("-")
    if column not in keys:
        raise BadRequest(f"this list is not sorted by {column[:60]!r}; sorts are {', '.join(keys)}")
    key = keys[column]
    found = sorted(found, key=name)
    known = [row for row in found if key(row) is not None]
    known.sort(key=key, reverse=sort.startswith("-"))
    found = [*known, *(row for row in found if key(row) is None)]
    pages = max(1, -(-len(found) // query.rows))
    page = min(query.page, pages)
    start = (page - 1) * query.rows
    shown = found[start : start + query.rows]
    return Listing(shown, len(everything), len(found), page, pages, start + 1 if shown else 0, sort, query.q.strip())
