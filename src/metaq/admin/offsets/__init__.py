"""Offsets of groups of MetaQ 1.x where their clients keep them: shown, copied from place to place, and a table for them made.

`places` reads and adds, in ZooKeeper or in a table of a database; `copying` decides what is copied where; `calls` is the part of
`Admin`.
"""
