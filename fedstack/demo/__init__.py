"""Runs the federated averaging example for `fedstack demo`: trains, prints a table, and draws a figure."""
