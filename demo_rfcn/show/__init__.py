"""Pictures and the report of a run."""
