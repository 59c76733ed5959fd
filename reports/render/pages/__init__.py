"""Pages as data: what a report or a comparison shows, before it becomes a PDF or a web page."""
