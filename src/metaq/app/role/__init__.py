"""The role of a broker among the replicas of its log: which it may have, what a slave does, and how it changes."""
