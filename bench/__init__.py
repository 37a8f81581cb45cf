"""The race: Lakewright against real Hudi, Delta, Iceberg and what the machine could do at best."""
