"""Producers of MetaQ 1.x and their local transactions."""
