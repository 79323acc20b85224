"""Transactions: half messages, staged ones, and those of MetaQ 1.x."""
