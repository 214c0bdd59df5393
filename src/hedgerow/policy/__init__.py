"""How a tree grows: policies made of a growth, a score and a stop; numbers in, an ordered tree out, never a tensor."""
