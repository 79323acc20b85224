"""Spark looks for data sources in top-level modules named `pyspark_*`; this one makes `format("metaq")` known."""

# Nothing else here: an import error in any such module breaks Spark's look-up of all sources.
from metaq.spark.data_source import MetaqDataSource as DefaultSource

__all__ = ["DefaultSource"]
