"""Clustering: rows of small files written anew, in few files and in an order that queries like."""
