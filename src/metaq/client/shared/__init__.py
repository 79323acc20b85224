"""What every client role stands on."""
