"""Looks at a cluster, one for all viewers, and the histories that they make."""
