"""Staged transactions."""
