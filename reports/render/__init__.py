"""How a report looks: pages, PDF, web page and model card."""
