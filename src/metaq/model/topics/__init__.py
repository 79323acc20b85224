"""Topics, where they live, and who says so."""
