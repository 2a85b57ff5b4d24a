"""What all other rooms stand on: texts and tracebacks of errors, and what a fork leaves behind."""
