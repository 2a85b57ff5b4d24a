"""Decides which failures of clients a call tolerates, and keeps account of the clients that are left."""
