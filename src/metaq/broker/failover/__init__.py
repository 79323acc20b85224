"""Leadership decided through ZooKeeper: the rules, the in-sync set of a leader, its lease."""
