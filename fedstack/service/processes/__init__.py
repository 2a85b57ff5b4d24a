"""Processes of this machine: how they end, and what they hold."""
