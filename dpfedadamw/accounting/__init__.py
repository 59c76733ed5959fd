"""What the noised queries of a run cost: accountants, views, worst cases and calibration."""
