"""What no consumer gets yet: delayed messages, and transactions that nobody has decided."""
