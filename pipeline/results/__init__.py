"""What a run leaves on disk: paths, the content-addressed store, the journal, the record of results."""
