"""Neural networks: when does importance sampling help, and by how much?"""
