"""What a run says of its methods: numbers pooled over chains, differences, fronts, costs. Free of torch."""
