"""Reading store folders that nobody has to serve."""
