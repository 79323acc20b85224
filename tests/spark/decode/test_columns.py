"""What all decoders share: the struct with `_corrupt`, and its columns in a frame."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.spark import decode
from tests.spark.decode.bodies import decoded, frame_of


@pytest.mark.spark
def test_expand_puts_the_fields_behind_the_columns_of_the_frame(spark):
    """With a prefix where they would have the name of one of these; names may hold dots."""
    from pyspark.sql import functions as sql

    frame = frame_of(spark, [b'{"I":1,"x.y":"z"}']).withColumn("p.q", sql.lit(7))
    struct = decode.json("I int, `x.y` string")
    with pytest.raises(ConfigError, match=r"has columns I already.*prefix"):
        decode.expand(frame, struct)
    wide = decode.expand(frame, struct, prefix="order_")
    assert wide.columns == ["i", "body", "p.q", "order_I", "order_x.y", "_corrupt"]
    assert [tuple(row)[2:] for row in wide.collect()] == [(7, 1, "z", None)]
    with pytest.raises(ConfigError, match="a struct, not a int"):
        decode.expand(frame, sql.lit(1))
    assert decoded(spark, [b"x"], decode.text(sql.lit("a string is its bytes"))) == [{"text": "a string is its bytes"}]
