"""Clustering: rewrites small files into few large ones, with rows sorted for queries."""
