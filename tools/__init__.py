"""Commands for developers of MetaQ; nothing of it is installed."""
