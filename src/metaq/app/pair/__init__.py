"""A broker as one half of a synchronous pair of MetaQ 1.x (docs/metaq1-slaves.md)."""
