"""Queues, read by offset."""
