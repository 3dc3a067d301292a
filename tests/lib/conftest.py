"""Properties are tested on the same examples in every run."""

from hypothesis import settings

settings.register_profile("book", derandomize=True, database=None, deadline=None, max_examples=30)
settings.load_profile("book")
