"""The pictures of `blockyard inspect`. Numbers come from the files beside this folder."""
