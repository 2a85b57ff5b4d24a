"""The language's types, and what is said of them."""
