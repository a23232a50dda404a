"""Real servers on free ports, in folders of their own, stopped by their own pid."""
