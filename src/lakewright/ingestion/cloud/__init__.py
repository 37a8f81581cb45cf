"""Objects of cloud stores, found by the notifications that the stores send of them."""
