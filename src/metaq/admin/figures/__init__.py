"""Figures of groups and topics: bytes, lag, rates, and who reads."""
