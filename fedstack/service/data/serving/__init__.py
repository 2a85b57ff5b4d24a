"""What servers of the data service have in common."""
