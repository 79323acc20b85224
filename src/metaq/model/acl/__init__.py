"""Accounts, their rights, white lists, and the judgement of a request by them, as RocketMQ's ACL has them."""
