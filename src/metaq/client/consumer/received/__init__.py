"""Messages in the hands of a consumer."""
