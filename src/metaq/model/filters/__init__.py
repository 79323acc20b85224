"""What a group wants to see of a topic."""
