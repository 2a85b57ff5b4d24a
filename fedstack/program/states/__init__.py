"""The states of a program, as files and in memory."""
