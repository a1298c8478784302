"""What a program writes, on its way: pipes, displays, the bounded log. Who gets it is decided in `runs`."""
