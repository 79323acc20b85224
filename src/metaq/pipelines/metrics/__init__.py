"""The pipeline `metrics`: figures of topics, groups and brokers per time window, alert rules on them, Parquet files of them.

    source (rows=slices) ──► foreachBatch ──► mapInArrow: fetch, count, histograms        (executors: `counting`)
                                         └──► fold into the open windows                  (driver: `state`)
    every sampleSeconds: counters, lag ──────► fold                                       (driver: `sampling`)
    each fold ──► closed windows ──► rules ──► alerts; Parquet                            (driver: `folder`, `alerts`)

Each fold is one step: the state, with all open windows, the batch id and the names of the files, is saved by one rename, then
the files are renamed. A replayed batch finds its id in the state and is skipped.
"""
