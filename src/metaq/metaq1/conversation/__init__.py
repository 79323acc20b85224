"""What is said to a server of MetaQ 1.x, without socket and event loop."""
