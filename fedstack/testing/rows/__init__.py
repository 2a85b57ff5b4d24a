"""The rows of the conformance suites, one promise per row."""
