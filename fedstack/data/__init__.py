"""The data of clients: batches, tables, columns of data frames."""
