"""MetaQ 1.x in ZooKeeper: nodes by which clients find brokers, in the layout of the Java client."""
