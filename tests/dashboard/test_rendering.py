"""Pages as HTML: whatever a cluster tells is text, in every field of every page."""

from __future__ import annotations

import html.parser
import re
from typing import Any

import pytest

from metaq.dashboard.page import Page
from metaq.dashboard.pages.table import PAGES
from metaq.dashboard.rendering.filters import age, count, rate, share, size, spark, time
from metaq.dashboard.rendering.renderer import Frame, Notice, Rendered, Renderer, linked, segment
from metaq.dashboard.rendering.static import FOLDER, read_static
from metaq.dashboard.sampling.sampler import ClusterState
from tests.dashboard.hostile import HARMLESS, HOSTILE, filled

TEMPLATES = FOLDER.parent / "templates"
RENDERER = Renderer(PAGES, read_static())


class Parts(html.parser.HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.scripts: list[str | None] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, tuple(sorted(given))))
        self.links += [str(given[name]) for name in ("href", "action", "src", "formaction") if name in given]
        if tag == "script":
            self.scripts.append(given.get("src"))

    def handle_data(self, data: str) -> None:
        self.text += data


def frame(text: str, **more: Any) -> Frame:
    given = {
        "path": "/", "query": {"q": text}, "cluster": text, "state": ClusterState(None, text, False), "now_ms": 1_800_000_000_000,
        "token": "token", "account": text, "login": True, "may_change": True, "notice": Notice(text, bad=True),
    }  # fmt: skip
    return Frame(**(given | more))


def rendered(page: Page, text: str) -> Rendered:
    path = dict.fromkeys(re.findall(r"\{(\w+)", page.path), text)
    return RENDERER.page(page, filled(page.values, text), frame(text), path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_hostile_name_is_text_in_every_field(page: Page):
    harmless, hostile = Parts(rendered(page, HARMLESS).html), Parts(rendered(page, HOSTILE).html)
    assert hostile.tags == harmless.tags
    assert hostile.text.count("<img src=x onerror=alert(1)>") >= harmless.text.count(HARMLESS) > 3
    assert all(one.startswith(("/", "#")) and not one.startswith("//") for one in hostile.links)
    assert "49" not in hostile.text  # {{7*7}} was not calculated
    assert len(hostile.scripts) == 1
    assert hostile.scripts[0].startswith("/static/dashboard.js?v=")


def test_errors_and_logins_are_text_too():
    for template, values in (
        ("error.html", {"status": 503, "text": HOSTILE}),
        ("login.html", {"next": HOSTILE, "error": HOSTILE, "access_key": HOSTILE}),
    ):
        found = Parts(RENDERER.other(template, HOSTILE, frame(HOSTILE), **values))
        assert "img" not in {tag for tag, _ in found.tags}
        assert len(found.scripts) == 1
        assert "<img src=x" in found.text
    assert "<img" not in RENDERER.bare("bounce.html", place=HOSTILE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_parts_that_follow_the_cluster_are_parts_of_the_page_and_have_no_form(page: Page):
    """All who look at a page get the same parts: none has a token of somebody's."""
    found = rendered(page, HARMLESS)
    assert "live-state" in found.fragments
    assert len(found.fragments) > 1 or not page.follows
    for name, part in found.fragments.items():
        assert f'id="{name}"' in found.html
        assert part in found.html
        assert 'method="post"' not in part


def test_nothing_is_trusted_and_nothing_is_inline():
    """`safe` would let a name through as HTML; the browser runs no inline script or style, so there must be none."""
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape", text), path.name
        assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:", text), path.name
        assert not re.search(r"<script(?! src=)", text), path.name
    assert RENDERER._environment.autoescape is True


def test_pages_load_nothing_from_elsewhere_and_little():
    files = read_static()
    assert set(files) == {"dashboard.css", "dashboard.js", "icon.svg"}
    assert sum(len(file.body) for file in files.values()) < 40_000
    for file in files.values():
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", file.body), file.name
    for path in TEMPLATES.glob("*.html"):
        assert "http:" not in path.read_text()
        assert "https:" not in path.read_text()


def test_every_page_has_its_own_name_path_and_key():
    assert len({page.name for page in PAGES}) == len({page.path for page in PAGES}) == len(PAGES)
    keys = [page.key for page in PAGES if page.key]
    assert len(set(keys)) == len(keys)
    menu = {page.name for page in PAGES if page.menu}
    assert all(page.menu or page.under in menu for page in PAGES)


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (count(1234567), "1\u202f234\u202f567"), (count(None), "–"), (rate(0.04), "0"), (rate(9.96), "10.0"), (rate(1234.4), "1\u202f234"),
        (rate(None), "–"), (size(0), "0 B"), (size(1536), "1.5 KiB"), (size(250 * 1024), "250 KiB"), (size(2**60), "1024 PiB"),
        (share(0.734), "73\u202f%"), (share(None), "–"), (age(0.2), "0 s"), (age(59.6), "1 min"), (age(61), "1 min 1 s"), (age(3600), "1 h"),
        (age(90_000), "1 d 1 h"), (age(30 * 86_400 + 3600), "30 d"), (age(None), "–"), (time(0), "1970-01-01 00:00:00 UTC"),
        (time(10**20), f"{10**20} ms"), (time(None), "–"), (spark([]), ""), (spark([1.0]), ""), (spark([None, 1.0]), ""),
        (spark([0.0, 0.0]), "M0.0 26.5L120.0 26.5"), (spark([0.0, 5.0, None, 5.0, 5.0]), "M0.0 26.5L30.0 1.5M90.0 1.5L120.0 1.5"),
        (linked("/topics", {"q": "a b&c", "page": 2, "sort": ""}), "/topics?q=a+b%26c&page=2"), (linked("/", {"q": None}), "/"), (segment("%DLQ%a/b?c"), "%25DLQ%25a%2Fb%3Fc"),
    ],
)  # fmt: skip
def test_figures_are_shown_as_people_read_them(shown: str, wanted: str):
    assert shown == wanted
