"""Delay levels and retries."""
