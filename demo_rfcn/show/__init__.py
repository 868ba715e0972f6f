"""What a run shows: pictures and the report."""
