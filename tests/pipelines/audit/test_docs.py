"""docs/audit.md says what is there, and its program writes ledgers that an audit reads."""

from __future__ import annotations

import re
import tomllib

import pytest

import metaq
from metaq.pipelines.audit.options import AuditOptions, Expected
from metaq.pipelines.configuration import configure
from metaq.spark.pipelines import audit
from metaq.spark.source.settings import markdown_table
from metaq.testing import EmbeddedBroker
from tests.support import ROOT

PAGE = (ROOT / "docs" / "audit.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_lists_the_options():
    """Each with its default and its sentence."""
    assert markdown_table(AuditOptions) in PAGE


def test_the_file_of_the_page_is_right():
    """It passes every check."""
    options = configure("audit", tomllib.loads(blocks("toml")[0])).options
    assert options.expected == [Expected("billing", None), Expected("search", "orders")]
    assert options.allow_repeated == 10


@pytest.mark.spark
@pytest.mark.all
@pytest.mark.spark_all
def test_the_ledgers_of_the_page_are_clean(spark, tmp_path):
    """Its program sends one message and consumes it, and writes both down."""
    with EmbeddedBroker() as broker:
        exec(blocks("python")[0], {"metaq": metaq, "NAMESRV": broker.namesrv})
        outcome = audit(spark, {
            "nameServers": broker.namesrv, "folder": str(tmp_path), "graceSeconds": 0, "sent": "ledger",
            "sentLedger": "sent-ledger", "consumed": "ledger", "consumedLedger": "consumed-ledger",
        })  # fmt: skip
    assert outcome.exit_status == 0, outcome.text
    (group,) = outcome.figures["groups"]
    assert (group["group"], group["counts"]["sent"], group["counts"]["consumed"]) == ("billing", 1, 1)
