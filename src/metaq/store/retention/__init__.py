"""What is kept, and what goes when."""
