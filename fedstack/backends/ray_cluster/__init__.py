"""Runs client work in Ray actors, which Ray places, starts and supervises."""
