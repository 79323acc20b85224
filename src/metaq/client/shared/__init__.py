"""Base of all client roles: core, connections, routes, sends and pulls, options."""
