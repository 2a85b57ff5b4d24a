"""Which closure runs where, and what becomes of it: state machines."""
