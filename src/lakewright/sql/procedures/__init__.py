"""The procedures of `CALL`, by the names that Hudi gives them."""
