"""Configuration files: their kinds, the keys that stand in them, and a template of ours."""
