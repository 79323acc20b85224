"""Pulls, offsets, and queries of messages."""
