"""The `CALL` procedures, under the names that Hudi uses for them."""
