"""The asynchronous slave of MetaQ 1.x: it copies a master's messages by the text protocol (docs/metaq1-slaves.md)."""
