"""Who a client is, with which keys, and whom it asks for routes: its options."""
