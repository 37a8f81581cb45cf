"""The table as a shared, changing thing: loading it into an immutable snapshot."""
