"""Stand-ins for compiled extensions that are not there, or that need a GPU to load."""
