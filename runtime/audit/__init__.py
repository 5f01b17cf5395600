"""The exact output distribution of a decoder on toy pairs, by enumeration; and whether a part of the user's own is lossless."""
