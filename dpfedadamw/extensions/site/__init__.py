"""The command that writes a web page over many runs; `reports.extensions.site` makes it."""
