"""Table services: maintenance that is planned and scheduled first, then executed by instant."""
