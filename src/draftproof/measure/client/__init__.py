"""One streamed request over HTTP: bytes in, a timed exchange out."""
