"""SQL databases of users: what the pipeline `changes`, `metaq.outbox` and `metaq.idempotence` have in common.

`address` has addresses of databases; `mysql` and `postgresql` connect there, each by its driver; `opening` chooses, SQLite too.
`statements` runs statements on what a program has at hand: a DB-API connection, or a connection or session of SQLAlchemy.
"""
