"""The audit: what was sent against what each consumer group consumed.

`evidence` reads both sides out of the cluster into two frames of plain rows, `comparing` holds them against each other,
`figures` says what that comes to, `text`, `page` and `plots` show it; `job` is the pipeline.
"""
