"""What runs from a checkout: the parts of its scripts."""
