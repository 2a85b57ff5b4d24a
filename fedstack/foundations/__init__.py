"""The base of all other packages: error texts, tracebacks, argument checks, caches, deadlines, segments, forks."""
