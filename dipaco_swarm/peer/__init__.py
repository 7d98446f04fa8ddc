"""The volunteer's program."""
