"""The pages: one module each, and `table`, which lists them."""
