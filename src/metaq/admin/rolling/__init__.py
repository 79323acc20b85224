"""Changes of leaders and restarts of brokers, one after the other, while clients send."""
