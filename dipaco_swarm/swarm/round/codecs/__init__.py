"""How a piece of an outer gradient becomes bytes and back: one file per codec.

codec.py    what a codec is, and how one is found by its name
exact.py    fp32   4 bytes a parameter, the numbers themselves
bf16.py     bf16   2 bytes
int8.py     int8   1 byte, and 4 bytes a block of 1024 for the block's largest magnitude
"""
