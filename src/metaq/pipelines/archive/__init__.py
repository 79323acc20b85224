"""The pipeline `archive`."""
