"""What runs for weeks on a host: the loop over reconcile, and what it tells of itself."""
