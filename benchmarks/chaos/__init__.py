"""Faults and slow lines for real programs: what a swarm does when its network and its peers misbehave."""
