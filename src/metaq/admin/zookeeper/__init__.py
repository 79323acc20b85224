"""A ZooKeeper of MetaQ 1.x, looked at: who is registered, who owns which partition, where groups are, and its nodes."""
