"""What only linear models can do: preconditioned SAGA, dual ascent, subsampled Newton, and the choice between them."""
