"""Pulls (11), filters, queue locks, offset resets and queries."""
