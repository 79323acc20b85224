"""Sends, replies, half messages."""
