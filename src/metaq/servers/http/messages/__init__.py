"""Messages in and out by HTTP."""
