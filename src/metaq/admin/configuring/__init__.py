"""Options of brokers and name servers: shown, changed while they run, compared."""
