"""Reading tables: scan plans, and the readers that execute them."""
