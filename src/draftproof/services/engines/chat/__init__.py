"""The stream of a chat completion: how it is asked for, its frames, and the fold that makes an answer."""
