"""Decoders under hostile input: they return a value or raise a domain error.

The commit chooses the few inputs of the suite. `make fuzz` draws random ones, many times as many;
what it finds is kept in `.hypothesis` and tried first the next time.
"""
