"""Bodies of topics that have a schema, as JSON: Avro and Protobuf."""
