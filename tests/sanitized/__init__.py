"""The compiled modules under ASAN and UBSAN: `make test-sanitized`."""
