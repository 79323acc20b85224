"""How brokers and clients of MetaQ 1.x find each other: nodes in a ZooKeeper, in the layout of the Java client."""
