"""Results of clients that are written to a store that others share, in place of being returned."""
