"""The program of docs/pipelines.md runs."""

from __future__ import annotations

import pytest

import metaq
from tests.docs.pages import blocks, replaced
from tests.spark.running import printed_by
from tests.support import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "pipelines.md").read_text()


@pytest.mark.spark
def test_its_program_archives_a_topic_and_reads_it(spark, metaq_broker, tmp_path):
    """All that is there when it starts."""
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(30):
            producer.send("pipelines-page", b"%d" % number)
    [program] = blocks(PAGE, "python")
    words = {
        "127.0.0.1:9876": metaq_broker.namesrv,
        '"orders"': '"pipelines-page"',
        "archive/orders": str(tmp_path / "archive"),  # planners have a working folder of their own
    }
    assert printed_by(replaced(program, words), spark, tmp_path) == "30 messages"
