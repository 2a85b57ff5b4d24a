"""What reading a dataset takes on both sides: blocks of elements, how many wait where, and readers of data workers."""
