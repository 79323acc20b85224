"""Dead letters of a group: looked at, edited, sent again."""
