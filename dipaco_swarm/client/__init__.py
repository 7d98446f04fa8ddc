"""A visit to a run: status, evaluate, generate, export."""
