"""What `fedstack demo` runs around the example of federated averaging: rounds, table, picture."""
