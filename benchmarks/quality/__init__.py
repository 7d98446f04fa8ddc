"""How good the models are that a swarm trains: DiPaCo in its variants against dense models, DiLoCo and flat mixtures."""
