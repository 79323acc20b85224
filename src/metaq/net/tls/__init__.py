"""TLS between sockets and streams, loaded only where it is switched on."""
