"""Servers in the background: started, found again and stopped by files in a folder of the user's (docs/running.md)."""
