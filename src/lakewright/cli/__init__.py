"""The command line `lakewright`."""
