"""What is wrong with a webhook's options, in a sentence."""

from __future__ import annotations

import re

import pytest

from metaq.errors import ConfigError
from metaq.model.filters.sql import Sql
from metaq.webhooks.options import WebhookOptions, of_file, of_mapping
from tests.webhooks.test_signing import TEXT

GOOD = {"url": "https://shop.example/hook", "topics": "orders"}


def test_the_usual_ones():
    plan = of_mapping("billing", GOOD)
    assert (plan.group, plan.topics, plan.retries) == ("billing", {"orders": "*"}, 16)
    assert plan.target.allowed == ()
    assert of_mapping("billing", {**GOOD, "ordered": True}).retries is None
    assert of_mapping("x", {**GOOD, "topics": ["a", "b"], "filter": "a > 1"}).topics == {
        "a": Sql("a > 1"),
        "b": Sql("a > 1"),
    }


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"url": ""}, "url is missing"),
        ({"topics": " , "}, "topics is missing"),
        ({"urls": "x"}, "there is no option urls; the nearest is url"),
        ({"topic": "a"}, "topic is there twice"),
        ({"tags": "a", "filter": "b > 1"}, "tags and filter: give one"),
        ({"batch": 5}, "batch=5 with format=raw"),
        ({"batch": 0}, "batch=0"),
        ({"format": "xml"}, "format=xml: allowed are raw, json"),
        ({"concurrency": "many"}, "concurrency='many': need a whole number"),
        ({"timeoutSeconds": 0}, "timeoutSeconds=0.0: the smallest"),
        ({"pauseLeastSeconds": 100}, "pauseLeastSeconds is longer"),
        ({"redirects": 4}, "redirects=4: the largest allowed value is 3"),
        ({"allowNetworks": "my.host"}, "allowNetworks: 'my.host' is no network"),
        ({"secretFiles": "/nowhere/x"}, "secretFiles: /nowhere/x cannot be read"),
        ({"headersFile": "/nowhere/x"}, "headersFile: /nowhere/x cannot be read"),
        ({"topics": ["a,b"]}, "topics: 'a,b' is no text without commas"),
        ({"topics": [1]}, "topics: 1 is no text"),
        ({"url": 5}, "url=5: need a text"),
        ({"start": "noon"}, "start=noon: allowed are earliest, latest"),
    ],
)
def test_wrong_ones(change, why):
    with pytest.raises(ConfigError, match=f"webhook billing: .*{re.escape(why)}"):
        of_mapping("billing", {**GOOD, **change})


def test_a_file_of_several_beside_a_brokers_sections(tmp_path):
    (tmp_path / "billing.secret").write_text(TEXT)
    path = tmp_path / "metaq.toml"
    path.write_text(
        '[broker]\nbrokerName = "a"\n'
        '[webhooks.billing]\nurl = "https://a.example/"\ntopics = ["orders", "refunds"]\nsecretFiles = "billing.secret"\n'
        '[webhooks.stock]\nurl = "https://b.example/"\ntopics = "orders"\ngroup = "warehouse"\n'
    )
    billing, stock = of_file(path)
    assert (billing.group, stock.group) == ("billing", "warehouse")
    assert len(billing.secrets) == 1  # the file is beside the configuration, wherever the process is
    assert [one.name for one in of_file(path, ["stock"])] == ["stock"]
    assert "Secret" not in repr(billing)
    with pytest.raises(ConfigError, match="has no webhook stok; the nearest is stock"):
        of_file(path, ["stok"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[broker]\n", r"has no section \[webhooks.NAME\]"),
        ("webhooks = 1\n", r"has no section \[webhooks.NAME\]"),
        ('[webhooks]\nurl = "x"\n', r"url stands in \[webhooks\]"),
        ("[webhooks.a\n", "is no TOML"),
        ("a = " + "[" * 5000, "is no TOML"),
        ('[webhooks.a]\nurl = "http://a/"\ntopics = "t"\ngroup = "g"\n[webhooks.b]\nurl = "http://b/"\ntopics = "t"\ngroup = "g"\n', "a and b are both group g"),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path, text, why):
    path = tmp_path / "hooks.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        of_file(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no colon", "line 1: need `Name: value`"),
        (": x", "line 1: need"),
        ("a b: x", "line 1: need"),
        ("# fine\nHost: x", "line 2: host is set by the webhook itself"),
        ("Webhook-Signature: x", "is set by the webhook itself"),
        ("content-length: 5", "is set by the webhook itself"),
        ("a: topsecret\x07", "line 1: need"),
        ("a: ü", "other characters than ASCII"),
    ],
)
def test_wrong_header_fields(tmp_path, text, why):
    path = tmp_path / "headers"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(why)) as caught:
        of_mapping("billing", {**GOOD, "headersFile": str(path)})
    assert "topsecret" not in str(caught.value)


def test_header_fields(tmp_path):
    path = tmp_path / "headers"
    path.write_text("# ours\nAuthorization: Bearer a:b \n\nX-Shop: 8\n")
    plan = of_mapping("billing", {**GOOD, "headersFile": str(path)})
    assert plan.target.headers == (("authorization", "Bearer a:b"), ("x-shop", "8"))


def test_every_option_has_a_sentence_and_stands_in_the_docs():
    from metaq.option_table import camel
    from tests.support import ROOT

    page = (ROOT / "docs" / "webhooks.md").read_text()
    for field in WebhookOptions.listed():
        assert field.metadata["doc"].endswith(".")
        assert f"`{camel(field.name)}`" in page
