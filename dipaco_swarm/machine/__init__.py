"""What the machine does to a program: clocks, sleep, Ctrl+C, faults that last."""
