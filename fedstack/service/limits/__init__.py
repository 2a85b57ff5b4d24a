"""What clients of a server may take, each and all together."""
