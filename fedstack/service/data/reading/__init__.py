"""Shared code for reading datasets: blocks of elements, memory budgets, and readers for data workers."""
