"""Pages as HTML, by Jinja2 with everything escaped, and their parts that change."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct

from metaq.dashboard.page import Page
from metaq.dashboard.rendering.filters import FILTERS
from metaq.dashboard.rendering.static import StaticFile
from metaq.dashboard.sampling.sampler import ClusterState


class Notice(Struct, frozen=True):
    """What is told once, above a page. `bad`: something was refused or has failed."""

    text: str
    bad: bool = False


class Frame(Struct, frozen=True, kw_only=True):
    """What a page has around its values.

    `path`, `query`: of its URL, without the format. `login`: visitors have accounts. `token`: of its forms.
    """

    path: str
    query: Mapping[str, str]
    cluster: str
    state: ClusterState
    now_ms: int
    token: str
    account: str = ""
    login: bool = False
    may_change: bool = False
    notice: Notice | None = None

    @property
    def seen_seconds(self) -> float | None:
        """Age of what is shown of the cluster; None: it was never seen."""
        return None if self.state.seen_ms is None else max(0, self.now_ms - self.state.seen_ms) / 1000


class Rendered(Struct, frozen=True):
    """A page. `fragments`: id → HTML of the parts that follow the cluster while it is open."""

    html: str
    fragments: Mapping[str, str]


FRAGMENT: Final = "live-"


class Renderer:
    """Renders pages. Args: pages: of the menu. static: files that they load."""

    def __init__(self, pages: tuple[Page, ...], static: Mapping[str, StaticFile]) -> None:
        self._environment = Environment(
            loader=PackageLoader("metaq.dashboard"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        self._environment.filters |= FILTERS | {"segment": segment}
        self._environment.globals |= {
            "menu": [page for page in pages if page.menu],
            "static": {name: file.url for name, file in static.items()},
        }
        for page in pages:  # compiled now, not for the first visitor
            self._environment.get_template(f"{page.name}.html")

    def page(self, page: Page, values: Struct, frame: Frame, path: Mapping[str, str]) -> Rendered:
        """Render a page. Args: path: the parts of its path."""
        title = page.title.format_map(path)
        return self._render(f"{page.name}.html", frame, title, page.under or page.name, v=values, follows=page.follows)

    def other(self, template: str, title: str, frame: Frame, **values: Any) -> str:
        """Render what is no page of the cluster, such as an error."""
        return self._render(template, frame, title, "", **values).html

    def bare(self, template: str, **values: Any) -> str:
        """Render what has no frame."""
        return self._environment.get_template(template).render(**values)

    def _render(self, template: str, frame: Frame, title: str, current: str, **values: Any) -> Rendered:
        fragments: dict[str, str] = {}

        inside = False

        def token() -> str:
            """Return the token of a form. What all viewers get must have none."""
            assert not inside, "a form is not in a live part"
            return frame.token

        def live(name: str, caller: Callable[[], Markup]) -> Markup:
            """Mark a part of a page that is sent again when it has changed."""
            nonlocal inside
            inside = True
            html = caller()
            inside = False
            fragments[FRAGMENT + name] = str(html)
            return Markup('<div id="{}" class="live" data-is="{}">{}</div>').format(
                FRAGMENT + name, digest(str(html)), html
            )

        def link(**changes: Any) -> str:
            """Return this page's URL with other parameters."""
            return linked(frame.path, {**frame.query, **changes})

        html = self._environment.get_template(template).render(
            **values, frame=frame, title=title, current=current, live=live, link=link, token=token
        )
        return Rendered(html, fragments)


def digest(html: str) -> str:
    """Return what says whether a browser has a part already."""
    return f"{zlib.crc32(html.encode()):08x}"


def linked(path: str, query: Mapping[str, Any]) -> str:
    """Return a URL; parameters that are "" or None are left out."""
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return path + ("?" + urlencode(given) if given else "")


def segment(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")
