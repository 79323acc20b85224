"""Partitions of MetaQ 1.x."""
