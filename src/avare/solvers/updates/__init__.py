"""From an estimate of the gradient to the next iterate: descent, proximal steps, Langevin and Hamiltonian dynamics."""
