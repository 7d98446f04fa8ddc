"""What hostile peers do to a swarm, measured."""
