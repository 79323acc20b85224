"""What producers and consumers of one session factory share: connections, routes, the background loop."""
