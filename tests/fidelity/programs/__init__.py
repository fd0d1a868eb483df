"""The programs, by subject."""
