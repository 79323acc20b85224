"""The pipeline `changes`: row changes in topics → the latest state of their tables.

`decoding` with `canal` and `debezium` turns bodies into changes, `kinds` says what their values are, `sequences` what may
follow what, `folding` what many changes of a key come to. None of them touches anything outside. `snapshot` and `bucket`
keep the state as Parquet, `database` with `mariadb` and `postgresql` in tables; `applying` is the query.
"""
