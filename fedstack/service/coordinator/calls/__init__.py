"""The functions that closures call, and their arguments."""
