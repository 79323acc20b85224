"""The pipeline `mirror`: topics of one cluster into another, every message once, in order, with the groups' progress.

`service` is the driver's half, `copying` that of the tasks; `finding` looks up where copies lie, `state` saves what was learned.
"""
