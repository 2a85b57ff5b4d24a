"""Parts shared by everything that reads datasets: blocks of elements, memory budgets, and data workers' readers."""
