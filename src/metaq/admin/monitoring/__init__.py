"""Whether servers of MetaQ 1.x, ours and the original, are as they should be: what can be seen of them, held against limits.

`reading` asks a server, `offsets` compares offsets of groups; `judging` decides; `metaq meta1 monitor` repeats and tells.
"""
