"""The archive of topics: its folder, its records, what was replaced in it. Spark writes it; readers need none."""
