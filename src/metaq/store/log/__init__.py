"""The commit log: files, writing, flushing."""
