"""Which partitions a consumer of MetaQ 1.x has: by its group in ZooKeeper, or all of one fixed server."""
