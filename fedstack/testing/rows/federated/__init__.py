"""Conformance rows about federated values and intrinsics."""
