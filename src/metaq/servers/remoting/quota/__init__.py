"""Quotas in remoting: requests about them, and what a connection above one is answered."""
