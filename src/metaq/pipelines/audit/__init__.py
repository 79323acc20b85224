"""The pipeline `audit`: compares what was sent with what each consumer group consumed.

`evidence` reads both sides into DataFrames of plain rows, `comparing` joins them, `figures` has the results; `text`, `page` and
`plots` render them; `job` is the pipeline.
"""
