"""Shared code for reading datasets: blocks of elements, memory budgets, and data workers' readers."""
