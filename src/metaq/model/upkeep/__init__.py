"""What goes of a store, in its time or by hand: what brokers tell of it, and where it is written down."""
