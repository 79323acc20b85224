"""The ready-made pipelines, a folder each; the modules here are shared by all of them."""
