"""RocketMQ's transactions: half messages, their ends and checks."""
