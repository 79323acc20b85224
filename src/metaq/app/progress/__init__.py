"""Where a broker learns how far groups of MetaQ 1.x are: their clients keep it in ZooKeeper, or in a table of a database.

`asking` has what both sources have in common; `offset_table` asks the database. `metaq.app.registration` has ZooKeeper, where the broker
is registered, too.
"""
