"""The archive of topics: its folder, manifests, records of replaced files, and readers.

Spark writes it; readers need no Spark.
"""
