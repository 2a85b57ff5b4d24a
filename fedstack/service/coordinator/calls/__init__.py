"""What closures call, and with what."""
