"""Whose a checkpoint of Spark's is."""

from __future__ import annotations

from metaq.pipelines.checkpoints import query_id


def test_the_id_of_a_query_is_in_its_checkpoint(tmp_path):
    """Before the first start there is none, and a file that was cut says none either."""
    assert query_id(tmp_path / "none") is None
    (tmp_path / "metadata").write_text('{"id": "6f1c9a2e"}')
    assert query_id(tmp_path) == "6f1c9a2e"
    (tmp_path / "metadata").write_text('{"id": "6f1')
    assert query_id(tmp_path) is None
