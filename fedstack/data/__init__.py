"""Prepares the data of clients: batches, tables and columns of data frames."""
