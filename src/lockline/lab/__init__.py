"""The laboratory: the locks of the literature against the failures of the literature, and the same machine on the user's own servers."""
