"""Recorders of training loops of others; programs import them from `dpfedadamw.integrations`."""
