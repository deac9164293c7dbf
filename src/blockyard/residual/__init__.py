"""How the stream passes the blocks: what each of them reads, and where its output goes. One file each."""
