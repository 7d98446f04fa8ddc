"""How long tests wait for what is to happen."""

PATIENCE = 3.0
"""Times what a test says. What it says is enough for a machine that has other work as well; machines that others share
stand still for longer. A test that passes takes no longer by it, one that fails does."""
