"""What a broker knows: topics, groups, offsets, members."""
