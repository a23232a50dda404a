"""Every recipe in docs/recipes is laid out as its page says and run with the real framework."""
