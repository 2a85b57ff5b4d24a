"""The common base of all executors: verbs, values that are computed on demand, and engines."""
