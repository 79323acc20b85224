"""The comparison of two replicas' logs."""
