"""SQL databases of users: what the pipeline `changes`, `metaq.outbox`, `metaq.idempotence` and offsets of MetaQ 1.x have in common.

`address` has addresses of databases; `mysql` and `postgresql` connect there, each by its driver; `opening` chooses, SQLite too.
`statements` runs statements on what a program has at hand: a DB-API connection, or a connection or session of SQLAlchemy.
`tables` makes tables with their indexes.
"""
