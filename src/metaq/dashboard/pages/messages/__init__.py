"""Messages: found, looked at, sent."""
