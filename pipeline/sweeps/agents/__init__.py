"""Those who run trials: they choose, lease devices, start, watch, end, and write down what came of it."""
