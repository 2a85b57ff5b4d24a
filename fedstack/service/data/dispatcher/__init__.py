"""The dispatcher: it registers datasets and divides the work on them."""
