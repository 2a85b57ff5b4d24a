"""Rows about federated values and intrinsics."""
