"""Staged transactions: several messages in several queues, all or none."""
