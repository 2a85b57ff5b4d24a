"""Values: payloads, columns of payloads, sequences, and conversions from and to Python values."""
