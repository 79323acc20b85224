"""A member of a group: its share of the queues, its pulls and its progress."""
