"""Files: the only readers and writers of them."""
