"""The other side of a remote executor: what a worker lets in, and how it runs a phase, from bytes to bytes."""
