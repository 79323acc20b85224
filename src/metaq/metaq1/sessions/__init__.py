"""Session factories of MetaQ 1.x: what makes producers and consumers."""
