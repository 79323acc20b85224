"""Blocking connections to brokers and name servers."""
