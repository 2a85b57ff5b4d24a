"""The subcommands of `fedstack`, a module each."""
