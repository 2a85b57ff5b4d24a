"""Values and phases in other processes."""
