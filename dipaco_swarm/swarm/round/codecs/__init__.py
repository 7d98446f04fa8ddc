"""How a piece of an outer gradient becomes bytes and back: one file per codec.

codec.py       what a codec is, and how one is found by its name
packing.py     the bytes of all but fp32 travel packed, without loss
exact.py       fp32   4 bytes a parameter, the numbers themselves
bf16.py        bf16   2 bytes, 1.4 packed
int8.py        int8   1 byte, and 4 bytes a block of 1024 for the block's largest magnitude; 0.83 packed
four_bits.py   what the next two have in common: half a byte, and 2 bytes a block of 64; 0.45 packed
int4.py        int4   15 levels at equal distances
e3m0.py        e3m0   a sign and a power of two
"""
