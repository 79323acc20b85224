"""Spans of a broker, by OpenTelemetry (docs/opentelemetry.md)."""
