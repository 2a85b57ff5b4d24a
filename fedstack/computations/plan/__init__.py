"""Plans: computations are traced, cut into phases, and become programs."""
