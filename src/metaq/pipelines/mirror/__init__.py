"""The pipeline `mirror`: copies topics of one cluster to another, every message once, in order, with the groups' progress.

`service` is the driver side, `copying` the worker side; `finding` searches the target for the copies' offsets, `table` translates
offsets by them, `groups` carries progress over, `state` is the saved state.
"""
