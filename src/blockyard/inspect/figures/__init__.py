"""The figures of `blockyard inspect`. The modules beside this folder compute the numbers."""
