"""Pulls, offsets, look-ups."""
