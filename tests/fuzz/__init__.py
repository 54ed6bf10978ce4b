"""Decoders under hostile input: they return a value or raise a domain error.

The suite draws the same few inputs each time. `make fuzz` draws other ones, many times as many;
what it finds is kept in `.hypothesis` and tried first the next time.
"""
