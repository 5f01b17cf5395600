"""One file for each command of `draftwright` that is no stage."""
