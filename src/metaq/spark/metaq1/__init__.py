"""The source `metaq` on a cluster of MetaQ 1.x, the original's too: its text protocol, its partitions and byte offsets."""
