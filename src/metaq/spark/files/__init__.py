"""Reading store folders and archives."""
