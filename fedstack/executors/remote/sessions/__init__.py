"""Sessions in other processes: values by id, at fedstack's own services and at any other executor service."""
