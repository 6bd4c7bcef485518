"""Where rows come from: a module for each type of source."""
