"""The files of clients' states, which programs and workers read and write."""
