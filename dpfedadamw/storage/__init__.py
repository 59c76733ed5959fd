"""Files that survive a crash: the steps to the disk, whole writes, and one writer at a time."""
