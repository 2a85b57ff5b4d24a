"""Values and phases at other processes."""
