"""`metaq meta1`: what an operator of brokers for MetaQ 1.x does."""
