"""Neural networks: when importance sampling helps, and by how much."""
