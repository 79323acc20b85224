"""Producers: batching, direct sends, atomic sends, request-reply."""
