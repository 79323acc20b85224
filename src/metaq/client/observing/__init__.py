"""Traces, the message log, and whoever watches."""
