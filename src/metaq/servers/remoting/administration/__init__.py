"""What administrators ask of a broker beyond its tables: handlers that translate."""
