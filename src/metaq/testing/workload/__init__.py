"""Producers and consumers whose every operation goes to a ledger."""

from metaq.testing.workload.workload import Load, Workload

__all__ = ["Load", "Workload"]
