"""The pipeline `metrics`: figures of topics, groups and brokers in windows of time, alerts on them, Parquet of them.

    source (rows=slices) ──► foreachBatch ──► mapInArrow: fetch, count, histograms        (executors: `counting`)
                                         └──► fold into the open windows                  (driver: `state`)
    every sampleSeconds: counters, lag ──────► fold                                       (driver: `sampling`)
    each fold ──► windows that are over ──► rules ──► alerts; Parquet                     (driver: `folder`, `alerting`)

Each fold is one step: the state with all that is open, the batch's number and the names of the files is saved by one rename,
then files get their names. A replayed batch finds its number in the state and is passed over.
"""
