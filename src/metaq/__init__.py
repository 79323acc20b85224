"""MetaQ: durable messages for Python, on the wire of RocketMQ, with Spark as its data pipeline."""

__version__ = "0.1.0"
