"""Spark looks for data sources in top-level modules named `pyspark_*`; this one makes `format("metaq")` known."""

from metaq.spark.data_source import MetaqDataSource as DefaultSource

__all__ = ["DefaultSource"]
