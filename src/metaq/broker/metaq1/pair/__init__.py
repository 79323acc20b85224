"""The synchronous pair of MetaQ 1.x (docs/metaq1-slaves.md)."""
