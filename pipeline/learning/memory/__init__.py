"""How much memory a model needs, by arithmetic alone, and which way of training it fits."""
