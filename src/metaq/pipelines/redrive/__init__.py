"""The pipeline `redrive`: sends dead letters, chosen by SQL, back to their topics, each once.

`job` is one run; `frames` evaluates the messages in Spark, `ledger` and `fence` record what was sent, `report` has the figures.
"""
