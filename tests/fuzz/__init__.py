"""Decoders under hostile input: a value or an error of ours comes out, and nothing else.

The suite draws the same few inputs each time. `make fuzz` draws other ones, many times as many;
what it finds is kept in `.hypothesis` and tried first the next time.
"""
