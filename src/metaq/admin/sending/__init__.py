"""Messages that an operator sends: new ones, and dead letters again."""
