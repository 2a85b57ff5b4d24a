"""What all other rooms build on: texts and tracebacks of errors, checks, caches, deadlines, segments, forks."""
