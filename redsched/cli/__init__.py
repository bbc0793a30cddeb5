"""The command line: one file per noun. A thin layer over the client; it never touches Redis itself."""
