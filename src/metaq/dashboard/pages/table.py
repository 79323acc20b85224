"""All pages. The order is that of the menu, and of looking for whom a path belongs to."""

from __future__ import annotations

from typing import Final

from metaq.dashboard.page import Page
from metaq.dashboard.pages import overview

PAGES: Final[tuple[Page, ...]] = (overview.PAGE,)
