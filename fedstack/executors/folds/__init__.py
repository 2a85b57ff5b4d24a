"""Folds the results of clients along one fixed tree: sums, means, extremes, and folds with functions of users."""
