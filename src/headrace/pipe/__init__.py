"""Pipes: records of a stream for programs in any language, by their stdin and stdout.

As Swift in seed 003, section 2.3; the protocol is in decision 0045. ``client`` is one child process
and what is spoken with it, ``consumer`` a position that outlives it, ``runner`` the loop over both.
"""
