"""The dispatcher, which registers datasets and divides the work of reading them among data workers."""
