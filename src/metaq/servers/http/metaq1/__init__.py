"""What MetaQ 1.x had by HTTP: the gateway of its plug-in jettyBroker, and the pages of its dashboard."""
