"""Where the kernels run, one file a backend."""
