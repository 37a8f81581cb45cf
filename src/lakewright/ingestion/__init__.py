"""Where rows come from: tables, cloud events, files and streams, each from a position on."""
