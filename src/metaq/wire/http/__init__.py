"""Bodies of the HTTP server: messages as JSON, NDJSON, raw bytes and CloudEvents, and what is answered."""
