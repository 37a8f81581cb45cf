"""Metrics of writes and table services, and the reporters that publish them."""
