"""How mixers, norms and the residual stream are wired. One file each."""
