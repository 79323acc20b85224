"""Statistics by topic and group, in windows of a minute, an hour and a day."""
