"""Handlers and the threads and processes that run them."""
