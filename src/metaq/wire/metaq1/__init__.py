"""The text protocol of MetaQ 1.x and its frames."""
