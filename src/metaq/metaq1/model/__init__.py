"""Values of MetaQ 1.x that users see: messages, partitions, results of sends."""
