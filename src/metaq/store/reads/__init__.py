"""Reading a served store."""
