"""The ready-made pipelines, a folder each."""
