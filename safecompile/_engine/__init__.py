"""What happens at a miss: one thread compiles, the others wait for its result and use it."""
