"""Replication of the log: the server from which slaves copy, and the slave's side of the connection."""
