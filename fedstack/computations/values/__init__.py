"""Values: payloads, columns of them, sequences, and conversions from and to Python values."""
