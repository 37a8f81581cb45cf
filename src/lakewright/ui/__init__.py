"""The web UI: JSON documents, a small web server, and the static files that the browser loads."""
