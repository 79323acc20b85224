"""Our own tests use what we ship for others."""

pytest_plugins = ["metaq.testing.pytest_plugin"]
