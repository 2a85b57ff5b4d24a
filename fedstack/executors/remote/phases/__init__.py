"""Client phases as messages, and what they yield."""
