"""The command line: parse, import late, call one function, word the failure. Importing it loads no torch."""
