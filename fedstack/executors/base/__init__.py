"""What all executors are made of: verbs, values that run when they are asked for, work in bulk."""
