"""What brokers have and no consumer gets yet: delayed messages, and half messages of open transactions."""
