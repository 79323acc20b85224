"""Clusters that grow and shrink: brokers are drained, added and removed, topics moved, while clients run."""
