"""The rows of the conformance suites: a promise each."""
