"""States that emit numbers: any family of emissions, one filter."""
