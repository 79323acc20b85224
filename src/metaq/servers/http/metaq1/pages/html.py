"""Plain HTML: whatever is put into an element is text, and shows as such."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from typing import Final

STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:75rem;padding:0 1rem 2rem;color:#1b1b1b;background:#fff}"
    "nav{padding:.7rem 0;border-bottom:1px solid #bbb}nav a{margin-right:1rem}table{border-collapse:collapse;margin:.5rem 0 1.5rem}"
    "th,td{border:1px solid #ccc;padding:.25rem .6rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}"
    "pre{background:#f4f4f4;padding:.7rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}form{margin:.5rem 0}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}a{color:#8ab4ff}pre{background:#222}th,td{border-color:#444}}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
FIELDS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Header fields of every page: nothing is loaded, nothing runs, nobody frames it."""


class Markup:
    """HTML that is whole and safe. Made by the functions of this module alone."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


Inner = Markup | str | int | float | None


def element(name: str, /, *inner: Inner, **attributes: str) -> Markup:
    """Return an element. Text in it and values of attributes are escaped; `_` in an attribute's name is a hyphen."""
    said = "".join(f' {key.replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{said}>{''.join(map(_text, inner))}</{name}>")


def void(name: str, /, **attributes: str) -> Markup:
    """Return an element that has nothing inside."""
    return Markup(element(name, **attributes).text.removesuffix(f"</{name}>"))


def _text(inner: Inner) -> str:
    if isinstance(inner, Markup):
        return inner.text
    return "" if inner is None else html.escape(str(inner))


def joined(parts: Iterable[Inner]) -> Markup:
    """Return parts one behind the other."""
    return Markup("".join(map(_text, parts)))


def table(head: Sequence[str], rows: Iterable[Sequence[Inner]]) -> Markup:
    """Return a table with a row of headings."""
    first = element("tr", *(element("th", one, scope="col") for one in head))
    return element("table", element("thead", first), element("tbody", *(row(one) for one in rows)))


def row(cells: Sequence[Inner]) -> Markup:
    """Return a row of a table."""
    return element("tr", *(element("td", one) for one in cells))


def pairs(values: Iterable[tuple[str, Inner]]) -> Markup:
    """Return a table of names and values."""
    rows = (element("tr", element("th", name, scope="row"), element("td", value)) for name, value in values)
    return element("table", element("tbody", *rows))


def link(text: str, to: str) -> Markup:
    """Return a link to a page of this server."""
    return element("a", text, href=to)


_VIEWPORT: Final = void("meta", name="viewport", content="width=device-width, initial-scale=1")
MENU: Final = ("dashboard", "logging", "cluster", "config", "topics", "stats", "java-properties", "thread-dump")


def page(title: str, *inner: Inner) -> bytes:
    """Return a whole page, with the menu."""
    menu = element("nav", *(link(name, f"/{name}") for name in MENU), aria_label="pages")
    head = element(
        "head",
        void("meta", charset="utf-8"),
        _VIEWPORT,
        element("title", f"{title} - MetaQ"),
        Markup(f"<style>{STYLE}</style>"),
    )
    body = element("body", menu, element("main", element("h1", title), *inner))
    return f'<!doctype html><html lang="en">{head.text}{body.text}</html>'.encode("utf-8", "replace")
