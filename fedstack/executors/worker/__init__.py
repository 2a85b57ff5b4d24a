"""The worker's counterpart of a remote executor: it checks received messages and runs the phases in them."""
