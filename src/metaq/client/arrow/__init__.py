"""Arrow batches in and out of messages."""
