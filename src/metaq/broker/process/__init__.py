"""Requests to the process that the broker runs in: read the configuration again, stop."""
