"""Sessions of Spark, and the Java under them."""
