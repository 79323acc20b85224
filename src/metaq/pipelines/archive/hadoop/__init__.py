"""The archive's output on a Hadoop file system: `output` writes files, `folder` publishes them, `lease` excludes other runs."""
