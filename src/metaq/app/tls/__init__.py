"""TLS of a server: options and files to what its ports and connections use."""
