"""Keys of RocketMQ's and MetaQ 1.x's files that set nothing here."""
