"""What an operator does to a store by hand."""
