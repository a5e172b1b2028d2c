"""What only linear models can do: SAGA, with steps that need no tuning."""
