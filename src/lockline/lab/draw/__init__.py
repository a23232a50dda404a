"""Pictures of runs: for the page, for the terminal."""
