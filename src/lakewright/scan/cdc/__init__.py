"""Change data: what each write did to each row, with the row before and after."""
