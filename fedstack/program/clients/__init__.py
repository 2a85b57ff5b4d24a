"""A state for each client, which outlives the calls that change it."""
