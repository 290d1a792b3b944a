"""A device's own records: from a file or a CSV, and the scaler that devices can share."""
