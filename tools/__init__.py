"""What builds, tests and serves the book. `tasks.py` is the way in."""
