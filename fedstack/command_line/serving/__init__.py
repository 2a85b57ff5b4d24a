"""The subcommand that serves."""
