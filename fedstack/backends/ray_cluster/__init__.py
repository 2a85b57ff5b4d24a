"""Ray runs the clients: in actors, which it places, starts and supervises."""
