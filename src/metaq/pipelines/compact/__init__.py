"""The pipeline `compact`."""
