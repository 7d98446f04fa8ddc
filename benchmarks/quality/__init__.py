"""How good the models are that a swarm trains: DiPaCo and its variants, dense models, DiLoCo, flat mixtures."""
