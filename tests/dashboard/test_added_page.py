"""The page of docs/dashboard.md, added as it says, is a page as any other."""

from __future__ import annotations

import re
import sys
import types

import httpx
import jinja2
import pytest

from metaq.dashboard import server
from metaq.dashboard.pages.table import PAGES
from metaq.dashboard.rendering import renderer
from tests.dashboard.running import Site, browsing, dashboard
from tests.support import PATIENCE, ROOT

pytestmark = pytest.mark.xdist_group("dashboard")
PAGE = (ROOT / "docs" / "dashboard.md").read_text()


def test_the_page_of_the_documentation_is_shown(site: Site, monkeypatch: pytest.MonkeyPatch):
    """In the menu, as HTML and as JSON, sorted and searched."""
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [template] = re.findall(r"```jinja\n(.*?)```", PAGE, re.DOTALL)
    module = types.ModuleType("cluster_names")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(program, vars(module))
    loader = jinja2.DictLoader({"cluster_names.html": template})
    ours = renderer.PackageLoader
    monkeypatch.setattr(renderer, "PackageLoader", lambda package: jinja2.ChoiceLoader([ours(package), loader]))
    monkeypatch.setattr(server, "PAGES", (*PAGES, module.PAGE))
    with dashboard(site.loop, site.up.namesrv.address) as running, browsing(running) as client:
        assert '<a href="/names"' in client.get("/").text

        def rows(**query: str) -> list[dict[str, object]]:
            answer: httpx.Response = client.get("/names", params={"format": "json", **query}, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text
            return answer.json()["rows"]["rows"]

        assert {"topic": "orders", "letters": 6} in rows()
        assert [row["topic"] for row in rows(q="pay")] == ["payments"]
        assert [row["letters"] for row in rows(sort="letters")] == sorted(row["letters"] for row in rows())
        shown = client.get("/names").text
    assert '<th scope="row">orders</th><td class="n">6</td>' in shown
