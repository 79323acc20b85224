"""Pulls, filters, locks and look-ups."""
