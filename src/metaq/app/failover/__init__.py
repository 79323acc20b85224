"""Failover through ZooKeeper: takes part in a group of replicas, leads it or follows its leader (docs/failover-protocol.md)."""
