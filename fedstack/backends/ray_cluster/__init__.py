"""Runs clients in Ray actors, which Ray places, starts and supervises."""
