"""Metrics of brokers, name servers and clients: their names in one table, and their text for Prometheus.

`table` says which there are. Who knows the figures yields `Sample`s of these; `exposition` writes them.
"""
