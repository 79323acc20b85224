"""Delay levels (scheduled messages) and consumer retries."""
