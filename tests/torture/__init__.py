"""Where `make torture` happens: each backend and topology, with everything that can be done to its servers."""
