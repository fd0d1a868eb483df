"""One file for each kind of state that torch has once for the process: here each thread has its own."""
