"""The remoting protocol of RocketMQ."""
