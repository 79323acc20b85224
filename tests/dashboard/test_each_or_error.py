"""Work for several names on one page: what each came to, and what is left when the page ends."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from metaq.dashboard.pages.common import each_or_error
from metaq.errors import NoRoute


def test_each_name_has_its_outcome_or_its_error():
    async def one(name: str) -> str:
        if name == "b":
            raise NoRoute("topic b has no route")
        return name.upper()

    found = asyncio.run(each_or_error((name, one(name)) for name in "abc"))
    assert found == ({"a": "A", "c": "C"}, {"b": "topic b has no route"})


@pytest.mark.parametrize("steps", range(4))
def test_a_page_that_ends_leaves_no_work_that_was_never_awaited(steps):
    """However far it got."""

    async def one() -> None:
        await asyncio.sleep(3600)

    async def run() -> None:
        page = asyncio.ensure_future(each_or_error((str(number), one()) for number in range(20)))
        for _ in range(steps):
            await asyncio.sleep(0)
        page.cancel()
        with pytest.raises(asyncio.CancelledError):
            await page

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(run())
