"""The mathematics of the book: one short module for each idea."""
