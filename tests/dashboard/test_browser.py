"""The dashboard in Chromium: journeys, what axe finds, and screenshots to look at (METAQ_SCREENSHOTS=FOLDER)."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import metaq
from metaq.admin import Admin
from metaq.dashboard.pages.table import PAGES
from tests.dashboard.running import Site, bury, chromium
from tests.support import PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dashboard")]

VIOLATIONS = (
    "rules => axe.run(rules).then(found => found.violations.map(one => [one.id, one.nodes.map(node => node.html)]))"
)
VIEWS = {"light": ("light", 1280, 900), "dark": ("dark", 1280, 900), "narrow": ("light", 360, 740)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright, browser = chromium()
    yield browser
    browser.close()
    playwright.stop()


@pytest.fixture(scope="module")
def axe() -> str:
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe looks at pages: pip install axe-playwright-python")
    (path,) = pathlib.Path(found.origin).parent.glob("**/axe.min.js")
    return path.read_text()


class Tab:
    """A page of the browser, which complains of nothing."""

    def __init__(self, browser: Any, url: str, view: str = "light", **options: Any) -> None:
        scheme, width, height = VIEWS[view]
        self._context = browser.new_context(
            base_url=url, color_scheme=scheme, viewport={"width": width, "height": height}, **options
        )
        self._context.set_default_timeout(PATIENCE * 1000)
        self.page = self._context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda one: self.faults.append(one.text) if one.type in {"error", "warning"} else None)
        self.page.on("pageerror", lambda one: self.faults.append(str(one)))
        self.page.on("request", lambda one: self.faults.append(one.url) if not one.url.startswith(url) else None)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._context.close()
        if kind is None:
            assert self.faults == []


def screenshot(page: Any, name: str) -> None:
    if folder := os.environ.get("METAQ_SCREENSHOTS"):
        page.screenshot(path=str(pathlib.Path(folder) / f"{name}.png"), full_page=True)


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(site: Site, browser: Any, axe: str, view: str):
    found: dict[str, Any] = {}
    rules = {"runOnly": ["color-contrast"]} if view == "dark" else {}  # all else is the same as in light
    with Tab(browser, site.changes.url, view, bypass_csp=True) as page:
        broker = site.paths["broker"]
        paths = {
            **site.paths,
            "broker": f"{broker}?q=fileReserved",
            "preview": f"{broker}?q=fileReserved&change=fileReservedTime&to=48",
        }
        for name, path in paths.items():
            page.goto(path)
            page.evaluate(axe)
            violations = page.evaluate(VIOLATIONS, rules)
            if violations:
                found[name] = violations
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, view)
            screenshot(page, f"{name}-{view}")
    assert found == {}


def test_a_visitor_finds_a_topic_and_the_group_that_lags(site: Site, browser: Any):
    with Tab(browser, site.shows.url) as page:
        page.goto("/")
        page.get_by_role("link", name="Group reporting").click()
        assert page.url.endswith("/groups/reporting")
        page.get_by_text("Messages wait for this group, and nobody is in it.").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.wait_for_url("**/topics")
        page.keyboard.press("/")
        page.keyboard.type("pay")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics?q=pay")
        assert page.locator("tbody th").all_inner_texts() == ["payments"]
        page.get_by_role("link", name="payments").click()
        page.get_by_role("heading", name="payments").wait_for()
        page.get_by_role("link", name="mailer").click()
        page.get_by_role("row", name=re.compile("PYTHON")).wait_for()


def test_an_open_page_follows_the_cluster(site: Site, browser: Any):
    """Without being loaded again: what is typed and where the focus is stays."""
    with Tab(browser, site.shows.url) as page:
        page.goto("/topics?q=invoices")
        page.get_by_text("Follows the cluster").wait_for()
        page.evaluate("window.mark = 1")
        figure = page.locator("tbody tr .figure > span").first
        page.get_by_label("Search topics").fill("something typed")
        page.get_by_role("link", name="invoices").focus()
        with metaq.Producer(site.up.namesrv.address) as producer:
            for _ in range(60):
                producer.send("invoices", b"body")
            eventually(lambda: figure.inner_text() != "0", what="the page has followed the cluster")
        assert page.evaluate("window.mark") == 1
        assert page.get_by_label("Search topics").input_value() == "something typed"
        assert page.evaluate("document.activeElement.textContent") == "invoices"


def test_a_part_that_is_new_has_the_page_loaded_again(site: Site, browser: Any):
    """As on the overview of a cluster that was away when the page was loaded."""
    with Tab(browser, site.shows.url) as page, metaq.Producer(site.up.namesrv.address) as producer:
        page.goto("/topics/audit-log")
        page.get_by_text("Follows the cluster").wait_for()
        page.evaluate("document.getElementById('live-queues').remove()")

        def is_back() -> bool:
            producer.send("audit-log", b"body")
            return bool(page.locator("#live-queues").count())

        eventually(is_back, what="the page is loaded again")


def test_an_option_is_changed_with_a_look_before(site: Site, browser: Any):
    with Tab(browser, site.changes.url) as page:
        page.goto("/brokers")
        page.get_by_role("link", name="broker-a").click()
        page.get_by_label("Search options").fill("fileReservedTime")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="Change fileReservedTime").click()
        page.get_by_label("Value", exact=True).fill("50")
        page.get_by_role("button", name="Show what will happen").click()
        page.get_by_text("becomes 50 at once").wait_for()
        page.get_by_role("button", name="Change it").click()
        page.get_by_role("status").filter(has_text="fileReservedTime was 72, is 50").wait_for()
    with Admin(site.up.namesrv.address) as admin:
        changed = admin.change_broker_options("broker-a", {"fileReservedTime": "72"})
        assert [(one.before, one.after) for one in changed] == [("50", "72")]


def test_the_theme_is_switched_and_remembered(site: Site, browser: Any):
    with Tab(browser, site.shows.url, "light") as page:
        page.goto("/")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Theme").click()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.goto("/groups")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark != light


def test_names_are_copied(site: Site, browser: Any):
    with Tab(browser, site.shows.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto("/topics/orders")
        page.get_by_role("button", name="Copy the name orders").click()
        page.get_by_text("copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "orders"


def test_everything_is_there_without_javascript(site: Site, browser: Any):
    with Tab(browser, site.shows.url, java_script_enabled=False) as page:
        page.goto("/")
        assert not page.get_by_role("button", name="Theme").is_visible()
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_label("Search topics").fill("orders")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="orders").click()
        page.get_by_role("heading", name="orders").wait_for()
        for one in PAGES:
            page.goto(site.paths[one.name])
            assert page.locator("h1").count() == 1


def test_a_message_is_found_and_its_body_downloaded(site: Site, browser: Any):
    with Tab(browser, site.shows.url) as page:
        page.goto("/topics/orders")
        page.get_by_role("link", name="Its messages").click()
        page.get_by_label("Key").fill("7")
        page.get_by_role("button", name="Search").click()
        page.locator("tbody th a").click()
        page.get_by_role("region", name="Body").get_by_text('"id": 7').wait_for()
        page.get_by_role("link", name="Hexadecimal").click()
        page.get_by_role("region", name="Body").get_by_text("00000000").wait_for()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").click()
        assert pathlib.Path(download.value.path()).read_bytes() == b'{"id": 7}'


def test_a_dead_letter_is_edited_and_sent_again(site: Site, browser: Any):
    """To an own topic, so that the figures of the others stay."""
    address = site.up.namesrv.address
    with Admin(address) as admin:
        admin.create_topic("mended", queues=1)
        with metaq.Producer(address) as producer:
            producer.send("mended", b'{"amount": "many"}', keys="mend")
        bury(admin, admin.find_messages("mended", key="mend").messages[0], "mailer")
    with Tab(browser, site.changes.url) as page:
        page.goto("/groups/mailer")
        page.get_by_role("link", name="Its dead letters").click()
        page.get_by_role("row", name=re.compile("mended")).locator("th a").click()
        page.get_by_role("textbox", name="Body").fill('{"amount": 7}')
        page.get_by_label("Where to").select_option(label="topic mended, for all groups")
        page.get_by_role("button", name="Send it again").click()
        page.get_by_text("Sent again to mended").wait_for()
        page.get_by_role("region", name="Body").get_by_text('"amount": 7').wait_for()
        assert page.get_by_role("row", name=re.compile("REDRIVE_ID")).count() == 1
    with Admin(address) as admin:
        admin.delete_topic("mended", force=True)
