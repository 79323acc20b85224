"""Delivery: from pulled messages to acks, retries and dead letters."""
