"""The pipeline `redrive`: dead letters, chosen by SQL, back to their topics, each once.

`job` is one run; `frames` judges the messages in Spark, `ledger` and `fence` know what was sent, `report` tells it.
"""
