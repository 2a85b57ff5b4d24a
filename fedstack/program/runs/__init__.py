"""Runs of programs as things: what belongs to a run, how runs are found and compared, and when one has done enough."""
