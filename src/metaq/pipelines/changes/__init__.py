"""The pipeline `changes`: row changes in topics → the latest state of their tables.

`decoding` with `canal` and `debezium` parses bodies into changes, `kinds` types their values, `folding` checks sequences and
joins the changes of a key. None of them does I/O. `to_snapshot` with `snapshot` and `bucket` keeps the state as Parquet,
`to_database` with `dialect`, `mariadb` and `postgresql` in tables; `service` is the query.
"""
