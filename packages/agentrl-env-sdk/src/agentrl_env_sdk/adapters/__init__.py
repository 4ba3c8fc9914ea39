"""Bring what exists: environments of other libraries as tasks, and our tasks to other people's trainers."""
