"""The one way into the log, and who waits for it."""
