"""Where documents come from: one file per kind of source.

    python.py        python                   the text of the Python installation itself
    files.py         text, jsonl, parquet     files on each peer
    huggingface.py   huggingface              a data set by its name
    rows.py          what Hugging Face `datasets` reads, as documents

A source is a function, `documents.Source`.
"""
