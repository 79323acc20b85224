"""What a running consumer tells administrators (221, 307), and messages that they have it consume (309)."""
