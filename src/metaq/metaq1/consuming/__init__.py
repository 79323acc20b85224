"""Consumers of MetaQ 1.x: fetches, listeners, retries, rejected messages, the topic browser."""
