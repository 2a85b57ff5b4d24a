"""The subcommands of `fedstack`, one module per subcommand."""
