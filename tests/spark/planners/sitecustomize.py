"""What every Python with this folder on its PYTHONPATH runs first: those that Spark forks its planners from import ours before.

Spark asks a Python for the schema, the partitions and the commit of each read and write. It is a fork of `pyspark.daemon`, whatever
`spark.python.daemon.module` says, and imports MetaQ anew each time: a third of the CPU of a small query. So the tests' sessions have
this folder on the path, and those forks find it imported, as the workers that run tasks do (metaq.spark.daemon).
"""

import sys

if sys.platform == "linux" and sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    from metaq.spark import daemon

    daemon.warm(daemon.NEEDED)
