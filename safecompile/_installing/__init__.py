"""Puts the patches in and takes them out: families, import hooks, the moment at which it may be done."""
