"""The pages of MetaQ 1.x: their data as JSON and as HTML, who may see them, and hostile text in them."""

from __future__ import annotations

import html.parser
import logging
import re
from urllib.parse import quote

import msgspec
import pytest

from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.model.metaq1.settings import PartitionRules, PartitionSettings
from metaq.model.topics.topic import TopicConfig
from metaq.options import Metaq1Options
from metaq.servers.http.metaq1.pages.config import without_secrets
from metaq.servers.http.metaq1.pages.html import FIELDS, element, page
from tests.broker.metaq1.support import settings
from tests.servers.http.running import running
from tests.servers.http.support import in_loop

JSON = {"accept": "application/json"}
HTML = {"accept": "text/html,*/*;q=0.8"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
PAGES = (
    "/",
    "/dashboard",
    "/logging",
    "/cluster",
    "/java-properties",
    "/thread-dump",
    "/config",
    "/topics",
    "/topics/test",
    "/stats",
)


def of_ours(text: bytes = b"", **topics: int) -> Metaq1Settings:
    options = Metaq1Options(server_port=0, broker_id=3, stat=True)
    default = PartitionSettings.of(options)
    sections = {
        name: msgspec.structs.replace(default, num_partitions=count) for name, count in (topics or {"test": 2}).items()
    }
    return Metaq1Settings(options, PartitionRules(default, sections, sections=True), text)


class Tags(html.parser.HTMLParser):
    """What a browser sees of a page: its elements, their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def harmless(answer) -> Tags:
    """The page, which has no script and no handler, and says so to the browser."""
    seen = Tags(answer.text)
    assert not {"script", "img", "iframe", "object", "link"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert all(answer.headers[name] == value for name, value in FIELDS.items())
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return seen


async def put(served, body=b"hello", partition=0, topic="test"):
    answer = await served.client.post("/put/0", params={"topic": topic, "partition": partition}, content=body)
    assert answer.status_code == 200, answer.text


@in_loop
async def test_each_page_is_html_for_people_and_json_for_programs(tmp_path):
    async with running(tmp_path, metaq1=of_ours()) as served:
        await put(served)
        for path in PAGES:
            seen = harmless(await served.client.get(path, headers=HTML))
            assert {"h1", "nav", "title"} <= set(seen.tags), path
            for fields in (JSON, {"content-type": "application/json"}, {"content-type": "application/vnd.x+json"}):
                told = await served.client.get(path, headers=fields)
                assert (told.status_code, told.headers["content-type"]) == (200, "application/json"), path
                assert isinstance(told.json(), dict)
        links = {
            value for tag, value in Tags((await served.client.get("/", headers=HTML)).text).attributes if tag == "href"
        }
        assert {path for path in PAGES if path not in {"/", "/topics/test"}} <= links
        for path in links:
            assert (await served.client.get(path)).status_code == 200, path


@in_loop
async def test_the_numbers_are_those_of_the_store(tmp_path):
    async with running(tmp_path, metaq1=of_ours(test=2, other=1)) as served:
        for _ in range(3):
            await put(served, partition=1)
        await served.client.get("/get/0", params={"topic": "test", "partition": 1, "offset": 75, "maxsize": 10})
        listed = (await served.client.get("/topics", headers=JSON)).json()["topics"]
        assert [one["topic"] for one in listed] == ["other", "test"]
        assert listed[0]["messageCount"] == 0 and listed[0]["avgMsgSize"] == "N/A"
        wanted = {"partitions": 2, "messageCount": 3, "messageBytes": 75, "avgMsgSize": "25"}
        assert {name: listed[1][name] for name in wanted} == wanted
        assert (
            listed[1]["topicConfig"]["deletePolicy"] == "delete,168"
            and listed[1]["topicConfig"]["acceptPublish"] is True
        )
        topic = (await served.client.get("/topics/test", headers=JSON)).json()["topic"]
        assert [topic[name].split(",")[0] for name in ("puts", "gets", "getMissed")] == [
            "Count=3",
            "Count=1",
            "Count=1",
        ]
        stats = (await served.client.get("/stats/test", headers=JSON)).json()["result"]
        assert stats == (await served.client.get("/stats?item=test", headers=JSON)).json()["result"]
        assert stats.startswith("STATS\r\ntest\r\nresultCode 0\r\npartitions 1\r\nmessage_count 3\r\nbytes 75\r\n")
        assert "cmd_put 3\r\n" in (await served.client.get("/stats", headers=JSON)).json()["result"]
        shown = (await served.client.get("/dashboard", headers=JSON)).json()
        assert shown["version"]["id"] == 3 and re.fullmatch(r"meta://127\.0\.0\.1:\d+", shown["version"]["uri"])
        assert (
            f"port {shown['version']['uri'].rpartition(':')[2]}\r\n"
            in (await served.client.get("/stats", headers=JSON)).json()["result"]
        )
        assert shown["system"]["fdc_used"] > 3


@in_loop
async def test_the_log_shows_its_last_lines_until_the_broker_ends(tmp_path):
    before = list(logging.getLogger("metaq").handlers)
    async with running(tmp_path, metaq1=of_ours()) as served:
        for number in range(30):
            logging.getLogger("metaq.here").warning("line %d %s", number, HOSTILE)
        lines = (await served.client.get("/logging", headers=JSON)).json()["logs"]
        assert len(lines) == 20 and lines[-1].endswith(f"WARNING metaq.here line 29 {HOSTILE}")
        answer = await served.client.get("/logging", headers=HTML)
        assert HOSTILE in harmless(answer).text and answer.headers["refresh"] == "2"
        assert len(logging.getLogger("metaq").handlers) > len(before)
    assert logging.getLogger("metaq").handlers == before


@in_loop
async def test_threads_and_properties_say_what_python_does_and_no_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_SECRET", "never-shown-12345")
    async with running(tmp_path, metaq1=of_ours()) as served:
        threads = (await served.client.get("/thread-dump", headers=JSON)).json()["threads"]
        assert any(one.startswith('"MainThread" ') and "_threads" in one for one in threads)
        properties = (await served.client.get("/java-properties", headers=JSON)).json()["props"]
        assert properties["python.implementation"] and properties["package.starlette"][0].isdigit()
        for path in PAGES:
            assert "never-shown-12345" not in (await served.client.get(path)).text


@in_loop
async def test_the_configuration_shows_without_secrets(tmp_path):
    text = (
        b"[system]\nbrokerId=3\n;offsetPassword=old-hidden\noffsetPassword = hidden-1\naccess.token:hidden-2\n"
        b"offsetDatabase=mysql://user:hidden-3@db:3306/x\nnumPartitions=2 ; <b>\n"
    )
    async with running(tmp_path, metaq1=of_ours(text)) as served:
        for path in ("/config", "/stats/config"):
            for fields in (JSON, HTML):
                answer = await served.client.get(path, headers=fields)
                assert "hidden-" not in answer.text and "numPartitions=2" in answer.text
                assert answer.text.count("(hidden)") == 4
        assert "<b>" in harmless(await served.client.get("/config", headers=HTML)).text


def test_what_is_a_secret():
    kept = "a=1\nzk.zkConnect=h:2181\nurl=http://h/?x=1\n"
    assert without_secrets(kept) == kept
    assert without_secrets("user=postgresql://u:p%40w@h/d") == "user=postgresql://u:(hidden)@h/d"
    assert without_secrets("  secretKey =  x y z\nb=2") == "  secretKey =  (hidden)\nb=2"


@pytest.mark.parametrize(
    "path",
    [
        f"/topics/{quote(HOSTILE.replace('/', '|'), safe='')}",
        f"/topics/test?group={quote(HOSTILE, safe='')}",
        "/topics/test?group=g",
        f"/topics?search={quote(HOSTILE, safe='')}",
        f"/topics?page={quote(HOSTILE, safe='')}",
        f"/stats?item={quote(HOSTILE, safe='')}",
        f"/stats/{quote(HOSTILE.replace('/', '|'), safe='')}",
    ],
)
@in_loop
async def test_hostile_text_shows_as_text(tmp_path, path):
    async with running(tmp_path, metaq1=of_ours()) as served:
        answer = await served.client.get(path, headers=HTML)
        harmless(answer)
        assert "<script" not in answer.text and "<img" not in answer.text
        told = await served.client.get(path, headers=JSON)
        assert told.headers["content-type"] in {"application/json", "application/problem+json"}


def test_whatever_stands_in_an_element_is_text():
    seen = Tags(page(HOSTILE, element("p", HOSTILE, title=HOSTILE)).decode())
    assert set(seen.tags) == {"html", "head", "meta", "title", "style", "body", "nav", "a", "main", "h1", "p"}
    assert seen.text.count(HOSTILE) == 3 and ("title", HOSTILE) in seen.attributes


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/topics/nobody", 404),
        ("GET", "/topics/rmq_sys_METAQ_POSITIONS", 404),
        ("GET", "/topics/test?group=g", 503),
        ("GET", "/topics/test?group=a%20b", 400),
        ("GET", "/topics?page=0", 400),
        ("POST", "/topics/test/groups/g/partitions/9/skip", 404),
        ("POST", "/topics/nobody/groups/g/partitions/0/skip", 404),
        ("POST", "/topics/test/groups/a%20b/partitions/0/skip", 400),
        ("POST", "/topics/test/groups/g/partitions/0/skip", 503),
        ("POST", "/reload-config", 400),
    ],
)
@in_loop
async def test_refusals_are_pages_for_people_and_problems_for_programs(tmp_path, method, path, status):
    async with running(tmp_path, metaq1=of_ours()) as served:
        await put(served)
        answer = await served.client.request(method, path, headers=HTML)
        assert answer.status_code == status and harmless(answer).text
        told = await served.client.request(method, path, headers=JSON)
        assert (told.status_code, told.json()["status"]) == (status, status)


@in_loop
async def test_what_fails_is_a_problem_and_the_next_page_is_there(tmp_path, monkeypatch):
    async with running(tmp_path, metaq1=of_ours()) as served:
        monkeypatch.setattr(served.broker.metaq1.partitions, "names", lambda: 1 / 0)
        answer = await served.client.get("/topics", headers=HTML)
        assert answer.status_code == 500 and answer.json()["detail"].startswith("ZeroDivisionError")
        assert (await served.client.get("/cluster")).status_code == 200


@in_loop
async def test_other_sites_cause_nothing(tmp_path):
    async with running(tmp_path, metaq1=of_ours()) as served:
        await put(served)
        asked = []
        served.broker.reloading.by(lambda: asked.append(1))
        for method, path in (
            ("POST", "/reload-config"),
            ("POST", "/topics/test/groups/g/partitions/0/skip"),
            ("GET", "/stats/reset"),
        ):
            for fields in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}, {"origin": "null"}):
                answer = await served.client.request(method, path, headers={**fields, **HTML})
                assert answer.status_code == 403 and "another site" in answer.text
                assert answer.headers["content-type"] == "application/problem+json" or harmless(answer)
        assert asked == []
        assert "cmd_put 1\r\n" in (await served.client.get("/stats", headers=JSON)).json()["result"]
        assert "reset ok" in (await served.client.get("/stats/reset", headers=JSON)).json()["result"]
        assert "cmd_put 0\r\n" in (await served.client.get("/stats", headers=JSON)).json()["result"]


@in_loop
async def test_accounts_see_what_their_rights_allow(tmp_path):
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n- {accessKey: the-looker, secretKey: 12345678}\n- {accessKey: the-admin, secretKey: 12345678, admin: true}\n"
    )
    deep = {"/logging", "/java-properties", "/thread-dump", "/config", "/stats/config", "/stats/reset"}
    async with running(tmp_path, metaq1=of_ours(), acl_enable=True, acl_path=str(accounts)) as served:
        for path in (*PAGES, *deep):
            answer = await served.client.get(path, headers=HTML)
            assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic"), path
            harmless(answer)
            assert (await served.client.get(path, headers=JSON)).status_code == 401
            looker = await served.client.get(path, headers=HTML, auth=("the-looker", "12345678"))
            admin = await served.client.get(path, headers=HTML, auth=("the-admin", "12345678"))
            assert admin.status_code == 200, path
            assert (looker.status_code == 403) == (path in deep), path
        for path in ("/reload-config", "/topics/test/groups/g/partitions/0/skip"):
            assert (await served.client.post(path)).status_code == 401
            assert (await served.client.post(path, auth=("the-looker", "12345678"))).status_code == 403


@in_loop
async def test_ten_thousand_topics_are_shown_in_pages_and_hold_nobody_up(tmp_path):
    async with running(tmp_path, metaq1=settings(Metaq1Options(server_port=0))) as served:
        served.broker.metaq1.settings.rules = PartitionRules(served.broker.metaq1.settings.rules.default)
        table = served.broker.topics.table
        for number in range(10_000):
            name = f"topic-{number:05}"
            table[name] = TopicConfig(name, 4, 4)
        answer = await served.client.get("/topics", headers=HTML)
        seen = harmless(answer)
        assert (
            seen.tags.count("tr") == 101 and "10000 topics, page 1 of 100" in seen.text and len(answer.content) < 50_000
        )
        second = harmless(await served.client.get("/topics?page=2&search=topic-0", headers=HTML))
        assert "10000 topics" in second.text and "topic-00100" in second.text
        few = harmless(await served.client.get("/topics?search=9999", headers=HTML))
        assert "1 topics, page 1 of 1" in few.text
        listed = (await served.client.get("/topics", headers=JSON)).json()["topics"]
        assert len(listed) == 10_000 and listed[-1]["topic"] == "topic-09999"
        assert (await served.client.get("/topics?page=999", headers=HTML)).status_code == 200


@in_loop
async def test_a_broker_without_metaq_1_has_no_such_pages(tmp_path):
    async with running(tmp_path) as served:
        for path in ("/", "/dashboard", "/config", "/thread-dump"):
            assert (await served.client.get(path)).status_code == 404
