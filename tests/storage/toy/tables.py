"""The tables of a program that exists only in tests, as its second revision has them."""

from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table

metadata = MetaData()
shelves = Table(
    "shelves",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("label", String(32), nullable=False),
)
books = Table(
    "books",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("shelf", Integer, ForeignKey("shelves.id")),
)
