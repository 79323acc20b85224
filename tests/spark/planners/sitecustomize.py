"""What every Python with this folder on its PYTHONPATH runs first: those that Spark forks its planners from import ours before.

Spark asks a Python for the schema, the partitions and the commit of each read and write. It is a fork of `pyspark.daemon`, whatever
`spark.python.daemon.module` says, and imports MetaQ anew each time: a third of the CPU of a small query. So the tests' sessions have
this folder on the path, and those forks find it imported, as the workers that run tasks do (metaq.spark.daemon). The planner of a
stream is a Python of its own, and says nothing when its JVM is gone before it has imported MetaQ.
"""

import sys

if sys.platform == "linux" and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark."):
    from metaq.spark import daemon

    if sys.orig_argv[2] == "pyspark.daemon":
        daemon.warm(daemon.NEEDED)  # quiets its forks
    else:
        daemon.quiet_here()
