"""Consume queues and the index."""
