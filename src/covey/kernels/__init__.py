"""What a client does with its own data: local optimisation, and the samplers."""
