"""Sends, request-reply, half messages."""
