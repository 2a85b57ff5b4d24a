"""Client phases and their results as messages."""
