"""What an operator does to a folder by hand: check it, look for flipped bits, make it whole again, copy it."""
