"""What tests in several folders share: tables, faults, processes and their scheduler."""
