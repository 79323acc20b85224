"""Access control of a server: files of accounts to what its protocol servers ask."""
