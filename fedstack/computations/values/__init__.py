"""Values: payloads, columns of them, and their codec."""
