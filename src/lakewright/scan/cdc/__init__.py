"""CDC queries: the changes that each write made to each row, with the row before and after."""
