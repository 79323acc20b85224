"""The documentation as a site: it builds without a warning, whole, and asks nobody but its own server for anything."""

from __future__ import annotations

import collections
import functools
import html
import importlib
import os
import pathlib
import posixpath
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
import yaml

from tests.dashboard.running import chromium
from tests.support import PATIENCE, ROOT
from tests.test_public_names import PUBLIC

pytest.importorskip("mkdocs", reason="MkDocs builds the site: pip install 'pymetaq[site]'")
pytest.importorskip("material", reason="the site's theme: pip install 'pymetaq[site]'")
pytest.importorskip("mkdocstrings", reason="it writes the pages of the API: pip install 'pymetaq[site]'")

from markdown_it import MarkdownIt

from tools import site_hooks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docs.site")]
"""One worker builds it."""

CONFIGURATION = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
FILES = site_hooks.tracked()
NAV = list(
    site_hooks.paths_of(
        site_hooks.expanded(CONFIGURATION["nav"], FILES, set(site_hooks.paths_of(CONFIGURATION["nav"])))
    )
)
PAGES = [path for path in NAV if path.endswith(".md") and not path.startswith("api/")]
VIEWS = {"light": ("light", 1280), "dark": ("dark", 1280), "narrow": ("light", 360)}
WHERE_IT_LOOKS_OTHERWISE = ("index.html", "groups.html", "configuration.html", "api/metaq.html", "bench/index.html")
"""Text and code, tables, wide tables, signatures, long lists."""
BLOCKS = {"h1", "h2", "h3", "h4", "ul", "ol", "li", "table", "tr", "td", "th", "pre", "code", "img", "a"}
ALONE = {"preconnect", "dns-prefetch", "preload", "prefetch", "stylesheet", "icon"}
"""Kinds of <link> that a browser follows by itself."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The built site's folder."""
    folder = tmp_path_factory.mktemp("site")
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE * 2,
        env=os.environ | {"PATH": path, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


class Page(HTMLParser):
    """What a page names: its anchors, its links, what a browser loads for it, and the elements of its text."""

    def __init__(self, text: str, within: str = "") -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self._within, self._inside = within, not within
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self._inside |= tag == self._within
        self.anchors |= {of[name] for name in ("id", "name") if name in of}
        if tag == "a" and "href" in of:
            self.links.append(of["href"])
        elif tag == "link" and ALONE & set(of.get("rel", "").split()):
            self.loaded.append(of["href"])
        elif "src" in of:
            self.loaded.append(of["src"])
        if self._inside and tag in BLOCKS and "headerlink" not in of.get("class", "") and (tag != "a" or "href" in of):
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != self._within


@pytest.fixture(scope="module")
def pages(site: pathlib.Path) -> dict[str, Page]:
    """Address within the site → page. 404.html is left out: its links begin at the server's root."""
    names = (path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return {name: Page((site / name).read_text(), "article") for name in names if name != "404.html"}


def own(page: str, link: str) -> tuple[str, str] | None:
    """Address and anchor of a link within the site; None: it leaves it."""
    parts = urllib.parse.urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = urllib.parse.unquote(parts.path)
    name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    return name, urllib.parse.unquote(parts.fragment)


def test_every_page_of_docs_is_in_the_navigation_once():
    """And nothing that is not there."""
    wanted = {path for path in FILES if path.startswith("docs/") and path.endswith(".md")}
    assert wanted - set(NAV) == set()
    assert [path for path, count in collections.Counter(NAV).items() if count > 1] == []
    assert [path for path in NAV if path not in FILES and not path.startswith("api/")] == []
    assert {path for path in FILES if re.fullmatch(r"examples/(metaq1/)?\w+\.py", path)} <= set(NAV)
    assert {"README.md", "README.zh-CN.md", "CHANGELOG.md", "bench/README.md"} <= set(NAV)


def test_every_public_package_has_its_page():
    assert sorted(path for path in NAV if path.startswith("api/")) == sorted(f"api/{name}.md" for name in PUBLIC)


@functools.cache
def api() -> site_hooks.Api:
    return site_hooks.Api()


@pytest.mark.parametrize("package", PUBLIC)
def test_the_page_of_a_package_has_all_that_it_exports(package: str):
    """The hook reads the sources, this imports them."""
    wanted = {name for name in importlib.import_module(package).__all__ if not name.startswith("__")}
    assert set(api().names(package)) == wanted


def test_every_public_name_is_described_on_one_page(pages: dict[str, Page]):
    """Where a page only points at another one, that one has it."""
    for package in PUBLIC:
        name = f"api/{package}.html"
        there = pages[name].anchors | {
            (own(name, link) or ("", ""))[1].rpartition(".")[2] for link in pages[name].links
        }
        linked = {target[0] for link in pages[name].links if (target := own(name, link))}
        missing = [
            one
            for one in api().names(package)
            if f"{package}.{one}" not in there and one not in there and f"api/{package}.{one}.html" not in linked
        ]
        assert missing == [], package


def test_a_default_is_shown_as_its_value(site: pathlib.Path):
    """Of names that only the source explains, none are left but those of objects."""
    named = set()
    for page in (site / "api").glob("*.html"):
        text = html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))
        named |= set(re.findall(r"^ {4}\w+: [^=\n]+ = ([A-Za-z_][\w.]*),?$", text, re.MULTILINE))
    assert named - {"None", "True", "False"} == {"SYSTEM"}, "its clock"
    assert "commit_interval: float = 5" in html.unescape(re.sub(r"<[^>]+>", "", (site / "api/metaq.html").read_text()))


def test_all_links_within_the_site_lead_somewhere(site: pathlib.Path, pages: dict[str, Page]):
    """Also to headings, pictures, styles and scripts."""
    dead = []
    for page, found in pages.items():
        for link in [*found.links, *found.loaded]:
            target = own(page, link)
            if target is None:
                continue
            name, anchor = target
            if not (site / name).is_file() or (anchor and anchor not in pages[name].anchors):
                dead.append((page, link))
    assert len(pages) > 100
    assert dead == []


def test_no_page_loads_anything_from_elsewhere(site: pathlib.Path, pages: dict[str, Page]):
    """No font, script, picture or style of another server."""
    assert [(page, one) for page, found in pages.items() for one in found.loaded if own(page, one) is None] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert len(styles) > 1000
    assert re.findall(r"@import[^;]*|url\(\s*['\"]?(?:https?:)?//[^)]*", styles) == []


def elements(text: str) -> collections.Counter[str]:
    """Those of a page as GitHub reads it."""
    return Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text)).counts


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_read_as_github_reads_it(path: str, pages: dict[str, Page]):
    """As many headings, lists and items, tables and cells, programs, links: Python-Markdown takes other texts for those than GitHub."""
    assert pages[site_hooks.address(path)].counts == elements((ROOT / path).read_text())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1. one\n   ```\n   code\n   ```\n2. two\n", "1. one\n    ```\n    code\n    ```\n2. two\n"),
        ("- a\n  - b\n    more\n", "- a\n    - b\n        more\n"),
        ("- a\n\n  b\n- c\n", "- a\n\n    b\n\n- c\n"),
        ("| x |\n|---|\n| `a \\| b` |\n", "| x |\n|---|\n| `a | b` |\n"),
        ("```\n| `a \\| b` |\n- x\n  y\n```\n", "```\n| `a \\| b` |\n- x\n  y\n```\n"),
        ("- lazy\nline\n", "- lazy\nline\n"),
    ],
)
def test_lists_and_tables_are_written_anew_for_python_markdown(text: str, wanted: str):
    assert site_hooks.as_python_markdown(text) == wanted


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright, browser = chromium()
    yield browser
    browser.close()
    playwright.stop()


@pytest.mark.parametrize("view", VIEWS)
def test_in_a_browser_nothing_is_wider_than_the_screen_and_nobody_else_is_asked(
    site: pathlib.Path, browser: Any, view: str
):
    """Read from the disk, without a server. Wide tables scroll. METAQ_SCREENSHOTS=FOLDER keeps pictures to look at."""
    scheme, width = VIEWS[view]
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    for name in WHERE_IT_LOOKS_OTHERWISE:
        page.goto((site / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if scheme == "dark" else "default")
        if folder := os.environ.get("METAQ_SCREENSHOTS"):
            page.screenshot(path=str(pathlib.Path(folder) / f"{name.replace('/', '-')}-{view}.png"))
    context.close()
    assert len(asked) > len(WHERE_IT_LOOKS_OTHERWISE)
    assert [one for one in asked if not one.startswith(("file:", "data:", "blob:"))] == []
