"""The page in the browser: documents, a small web server, and files that the browser gets."""
