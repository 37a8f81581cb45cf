"""Clients of one table: writes, services, TTL and stream sinks, configured by Hudi's options."""
