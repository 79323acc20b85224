"""Webhooks: a consumer group whose messages are posted to a URL (docs/webhooks.md)."""
