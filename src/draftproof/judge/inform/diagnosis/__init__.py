"""Where the time goes, what bounds it, what to look at first, what a drafter costs."""
