"""HFiles of version 3: sorted keys with values, in which the metadata table stores its records."""
