"""What runs from a checkout: the test script, the demo and its parts."""
