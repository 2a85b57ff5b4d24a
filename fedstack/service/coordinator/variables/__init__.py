"""Values that change, held by a server: variables."""
