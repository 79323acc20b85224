"""RocketMQ's transactions: half messages, END_TRANSACTION and checks."""
