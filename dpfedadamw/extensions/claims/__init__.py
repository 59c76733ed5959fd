"""The command that judges printed claims; `audit.extensions.claims` judges them."""
