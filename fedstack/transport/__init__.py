"""How bytes get from one process to another."""
