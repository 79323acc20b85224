"""HTTP server: an ASGI application in the broker's loop, on the listener that all protocol servers have."""
