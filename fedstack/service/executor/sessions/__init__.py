"""What clients keep in a worker, for how long, and what is let in."""
