"""Upkeep of brokers by hand: cleaning and trims."""
