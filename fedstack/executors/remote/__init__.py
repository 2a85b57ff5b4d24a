"""Remote execution: values and client phases in other processes."""
