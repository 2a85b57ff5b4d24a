"""The dispatcher: it knows datasets, and divides the work on them."""
