"""Positions, frames and archives of MetaQ 1.x."""
