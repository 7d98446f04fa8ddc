"""The whole story on one machine: a bootstrap node, peers, a dense baseline, and what came out of it."""
