"""Messages and the bytes that they are made of."""
