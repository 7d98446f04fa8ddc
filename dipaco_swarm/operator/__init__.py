"""The bootstrap node's program."""
