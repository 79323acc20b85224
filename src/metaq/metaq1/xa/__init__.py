"""XA branches of MetaQ 1.x: a server's share of a transaction that a transaction manager runs over several systems."""
