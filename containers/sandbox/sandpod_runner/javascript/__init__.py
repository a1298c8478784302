"""JavaScript programs and contexts: the helper of Node, under the image's Python, and in `inside` what runs in Node.

How values, streams and errors of JavaScript become those of a run belongs here. It all belongs to the program, and
nobody trusts it; spare processes are kept in `processes`.
"""
