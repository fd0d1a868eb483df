"""Reversible changes of another library's code. Nothing here knows torch."""
