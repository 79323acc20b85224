"""Values of pages as HTML."""
