"""What clients of MetaQ 1.x ask of a broker."""
