"""What `.ci/run`, `make quick` and `make nightly` decide: which step runs, on which files it depends, how it went.

Loads nothing but the standard library: it runs before there is an environment.
"""
