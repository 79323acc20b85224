"""Addresses: those that are listened on, those that others are told, and where the name servers are."""
