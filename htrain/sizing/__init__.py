"""The cheapest cluster for a target EPS."""
