"""The pipeline `compact`, and the upkeep that `archive` does by the same code."""
