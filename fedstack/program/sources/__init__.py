"""Where a program gets the data of its clients."""
