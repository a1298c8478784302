"""Python programs and contexts in their own process, under the image's own Python.

What a program finds there (`__main__`, streams, `display`, IPython) and how its values and errors are shown belong
here. Nobody trusts what is here: limits and ends are the runner's, on the other side.
"""
