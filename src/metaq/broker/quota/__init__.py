"""Quotas of clients, accounts and addresses: what they take, what they wait for it, and what is refused."""
