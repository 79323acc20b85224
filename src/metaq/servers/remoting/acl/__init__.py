"""Accounts of a server: who may ask, and requests that change or show them."""
