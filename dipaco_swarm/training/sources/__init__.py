"""Where documents come from: one file per kind of source.

    python.py        python                   the text of the Python installation itself
    files.py         text, jsonl, parquet     files on each peer
    huggingface.py   huggingface              a data set by its name
    mixture.py       mixture                  several of these, by their weights
    rows.py          what Hugging Face `datasets` reads, as documents
    opening.py       files, compressed or not

A source is a function, `documents.Source`.
"""
