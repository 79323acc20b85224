"""Replication: what a master knows of its slaves, and what a slave does with what its master sends."""
