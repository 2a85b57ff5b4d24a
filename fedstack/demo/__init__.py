"""Runs the example of federated averaging for `fedstack demo`: rounds, table, picture."""
