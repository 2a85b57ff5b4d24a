"""What clients have: batches, tables, columns of data frames."""
