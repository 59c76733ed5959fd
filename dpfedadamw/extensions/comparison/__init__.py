"""The command that sets runs side by side; `reports.extensions.comparison` compares them."""
