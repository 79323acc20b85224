"""The archive's output on a file system of Hadoop's: `output` writes it, `folder` publishes it, `lease` keeps others away."""
