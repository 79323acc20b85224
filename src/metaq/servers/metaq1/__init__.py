"""The text protocol of MetaQ 1.x."""
