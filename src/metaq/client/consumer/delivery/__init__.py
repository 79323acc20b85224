"""From a pulled message to its end."""
