"""Workers of this machine, as processes of their own."""
