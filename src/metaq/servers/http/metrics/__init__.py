"""What `/metrics` says: the figures of services as samples of `metaq.metrics`."""
